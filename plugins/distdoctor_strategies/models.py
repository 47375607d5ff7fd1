"""The reference models, by the names of `--model`."""

from __future__ import annotations

from distdoctor.offers import Model

HOME = "distdoctor.workloads.models"

MLP = Model("mlp", "a residual network of linear layers, six blocks", f"{HOME}.mlp:make")
CONVNET = Model("convnet", "three convolutions with GroupNorm", f"{HOME}.convnet:make")
GPT = Model("gpt", "a byte-level GPT of six blocks", f"{HOME}.gpt:make", data="bytes")
GPT2 = Model("gpt2", "GPT-2 small, 163 million parameters, untrained", f"{HOME}.large_gpt:small", data="tokens")
GPT_7B = Model(
    "gpt-7b",
    "a GPT of 6.9 billion parameters, to predict what it needs",
    f"{HOME}.large_gpt:seven_billion",
    data="tokens",
)
RESNET18 = Model("resnet18", "torchvision's resnet18, untrained", f"{HOME}.torchvision_models:resnet18")
RESNET50 = Model("resnet50", "torchvision's resnet50, untrained", f"{HOME}.torchvision_models:resnet50")
VIT_B_16 = Model("vit-b-16", "torchvision's vision transformer, untrained", f"{HOME}.torchvision_models:vit_b_16")
