"""What runs say, written down for people: one HTML page, a PDF, and Markdown."""
