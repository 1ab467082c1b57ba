"""FLIP-27 without an engine: the protocol between one SplitEnumerator and its SourceReaders.

Contains no Ray and no Spark.
"""
