"""The protocol between one SplitEnumerator and its SourceReaders, and the coordinator that both speak to (FLIP-27)."""
