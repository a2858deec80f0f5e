"""What can be set: a file per section, with the fields, their facts and the checks below them."""
