"""Compiled helpers that loops of several packages share: texts of bytes and numbers, UTF-8, dates, wide integers."""
