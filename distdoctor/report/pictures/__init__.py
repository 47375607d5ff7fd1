"""The pictures of a report: drawn from a recording as SVG of our own, each with the same facts as a table."""
