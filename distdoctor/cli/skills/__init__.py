"""What `distdoctor skill install` writes."""
