"""Recorded decisions: read, reviewed, replayed, and handed out as notices and receipts."""
