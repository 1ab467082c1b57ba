"""The protocol between one SplitEnumerator and its SourceReaders, and the coordinator between them (FLIP-27)."""
