"""How a rank's recording lies on disk, writer's and reader's side of it beside each other."""
