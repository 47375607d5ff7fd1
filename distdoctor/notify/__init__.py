"""Send a diagnosis to where people look: an alert and the report, through a library that is installed beside us."""
