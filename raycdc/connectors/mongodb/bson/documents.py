"""Documents in the driver's form: the common type of answers and requests.

`Document` is used only where the driver is called; all other code has more specific types. Dates are always numbers,
because Python's dates cannot hold every date of BSON.
"""

from __future__ import annotations

from typing import Any

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.json_util import JSONMode, JSONOptions
from bson.raw_bson import RawBSONDocument

#: A document with values of any BSON type.
Document = dict[str, Any]
PLAIN: CodecOptions[Document] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
#: The form in which documents are bytes whose values are read one by one. Nested documents stay bytes, too.
RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
)
#: The form of BSON values in states.
CANONICAL = JSONOptions(json_mode=JSONMode.CANONICAL, datetime_conversion=DatetimeConversion.DATETIME_MS)
