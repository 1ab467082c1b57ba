"""Tables of a raycdc source in Spark, for users' own jobs: streams, bounded reads, views.

``register(spark)``, then ``spark.readStream.format("raycdc")`` (`raycdc.datasource.stream`) or
``spark.read.format("raycdc")`` (`raycdc.datasource.bounded`), both with the options of
`raycdc.datasource.options`. Importing this package imports pyspark.
"""

from raycdc.datasource.source import RaycdcDataSource, create_views, register

__all__ = ["RaycdcDataSource", "create_views", "register"]
