"""The delay of the console in a real Chromium."""
