"""Views of a recording that several families share."""
