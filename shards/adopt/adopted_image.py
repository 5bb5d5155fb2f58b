"""Whether an image of a foreign tar looks the same to every reader, without decoding it."""

from accelssl.shards.images.image_header import UnusableImage, kept_data_ends, opened_image
from accelssl.shards.images.jpeg_header import SOI, NotPlain
from accelssl.shards.images.plain_jpeg import why_not_plain


def why_not_alike(data: bytes) -> str | None:
    """None for an image that `check_image` would keep if it decodes, else what is wrong with it.

    The judgement is that of `kept_data_ends`, and so are the words for a JPEG that can be opened.
    """
    if not data.startswith(SOI):
        return "not a JPEG"
    try:
        with opened_image(data) as image:
            kept_data_ends(data, image)
    except NotPlain as reason:
        return str(reason)
    except UnusableImage as error:
        # Those of a kind under one name, as far as can be: an error may tell sizes and bytes.
        return why_not_plain(data) or str(error)
    return None
