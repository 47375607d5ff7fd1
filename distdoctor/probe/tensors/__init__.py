"""What every stream may need to know of tensors and of the modules that hold them."""
