"""Documents in the driver's form: the common type of answers and requests.

`Document` is used only at calls of the driver; other code has types of its own. The options say how BSON is read: dates
are numbers, because not every date of BSON is one of Python.
"""

from __future__ import annotations

from typing import Any

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.json_util import JSONMode, JSONOptions
from bson.raw_bson import RawBSONDocument

#: Fields with values of any type of BSON.
Document = dict[str, Any]
PLAIN: CodecOptions[Document] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
#: Documents as bytes, of which values are read one by one; nested documents stay bytes, too.
RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
)
#: The form in which state holds values of BSON.
CANONICAL = JSONOptions(json_mode=JSONMode.CANONICAL, datetime_conversion=DatetimeConversion.DATETIME_MS)
