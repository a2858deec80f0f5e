"""Files that others may have written or read: folders, locks, checksums, JSON, YAML, downloads."""
