"""Reference training: models, data sets and the loop that the strategies share."""
