"""Modules of JavaScript that all pages share: elements, numbers in words, bars."""
