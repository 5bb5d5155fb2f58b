"""Check that the coded data of a JPEG has the length of its picture."""

from PIL import Image

_STUFFING = b"\xff\x00"


def codes_its_picture(image: Image.Image, data: bytes, data_ends: tuple[int, ...]) -> bool:
    """Return True if a plain JPEG's data decodes to exactly its picture.

    libjpeg does not fail for data that ends early, goes on for too long or holds codes that do not
    exist: it makes up the rest, and GPU decoders make up other pixels, or fail. Pillow does not say
    that it happened, but how much of its input the decoder has used tells.
    """
    decoder, start = _PartwiseDecoder(image), 0
    try:
        for end in data_ends:
            if not decoder.reads_to_the_end(data[start:end]):
                return False
            start = end
        # A progressive picture is complete at the end marker.
        return decoder.is_done or (decoder.feed(data[start : start + 2]) and decoder.is_done)
    except OSError:
        return False


class _PartwiseDecoder:
    """Pillow's decoder of a JPEG, fed in pieces. It fills the image of its constructor."""

    def __init__(self, image: Image.Image) -> None:
        image.load_prepare()  # type: ignore[attr-defined]
        name, extents, _, arguments = image.tile[0]  # type: ignore[attr-defined]
        # As PIL.ImageFile.Parser does, which does not take JPEGs.
        self._decoder = Image._getdecoder(image.mode, name, arguments, image.decoderconfig)  # type: ignore[attr-defined]
        self._decoder.setimage(image.im, extents)
        self._waiting = b""
        self.is_done = False

    def feed(self, part: bytes) -> bool:
        """Decode more of the file; return True if all was used. Raise OSError on failure."""
        if self.is_done:
            return True
        self._waiting += part
        used, error = self._decoder.decode(self._waiting)
        if error < 0:
            raise OSError(error)
        self.is_done = used < 0
        self._waiting = b"" if self.is_done else self._waiting[used:]
        return not self._waiting

    def reads_to_the_end(self, part: bytes) -> bool:
        """Decode up to a marker; return True if the data ends there, within some 8 bytes.

        While the decoder expects data it uses nothing before it has several bytes. As soon as it
        expects a marker it is done with the picture, or drops whatever comes, byte for byte. That
        must not be so before the last byte, and must be so after it. The stuffing serves as bytes
        to look ahead to: as data it would be ones only, which are no code.
        """
        last = len(part) - (2 if part.endswith(_STUFFING) else 1)
        had_used_all = self.feed(part[:last])
        if self.is_done:
            return False
        has_used_all = self.feed(part[last:])
        if has_used_all and had_used_all and not self.is_done:
            return False
        return self.is_done or (self.feed(8 * _STUFFING) and self.feed(_STUFFING))
