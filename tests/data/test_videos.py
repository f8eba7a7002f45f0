"""A video is read whole or refused: what was cut off is never taken for all there was."""

from __future__ import annotations

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.errors import InvalidInput

av = pytest.importorskip("av")
FRAMES = np.random.default_rng(0).integers(0, 256, (20, 32, 48, 3), dtype=np.uint8)
KINDS = {
    "clip.mp4": ("mpeg4", "yuv420p"),
    "clip.mkv": ("mpeg4", "yuv420p"),
    "clip.webm": ("libvpx", "yuv420p"),
    "clip.avi": ("mpeg4", "yuv420p"),
    "clip.gif": ("gif", "rgb8"),
}


def write_video(path, sound_seconds=0):
    codec, pixels = KINDS[path.name]
    options = {"movflags": "faststart"} if path.suffix == ".mp4" else {}
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=10)
        stream.height, stream.width = FRAMES.shape[1:3]
        stream.pix_fmt = pixels
        sound = container.add_stream("mp2", rate=48000) if sound_seconds else None
        for image in FRAMES:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
        for number in range(sound_seconds * 48000 // 1152):
            silence = np.zeros((1, 2 * 1152), dtype=np.int16)
            frame = av.AudioFrame.from_ndarray(silence, format="s16", layout="stereo")
            frame.sample_rate, frame.pts = 48000, 1152 * number
            container.mux(sound.encode(frame))
        if sound is not None:
            container.mux(sound.encode())


def ends_of_packets(path):
    """Where in the file each frame is over."""
    with av.open(str(path)) as container:
        return [packet.pos + packet.size for packet in container.demux(video=0) if packet.size]


@pytest.mark.parametrize("name", KINDS)
def test_a_video_that_was_cut_off_is_refused_wherever_it_was_cut(name, tmp_path):
    write_video(tmp_path / name)
    assert slrt.open_array(tmp_path / name).shape == (32, 48, 3, len(FRAMES))
    whole, ends = (tmp_path / name).read_bytes(), ends_of_packets(tmp_path / name)
    # Between two frames nothing else looks torn.
    for end in (ends[-4], ends[-3] - 5, 2 * len(whole) // 3):
        cut = tmp_path / f"cut-{name}"
        cut.write_bytes(whole[:end])
        with pytest.raises(InvalidInput, match=r"cut-clip.*copy it again"):
            slrt.open_array(cut)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.avi"])
def test_sound_may_be_longer_than_the_pictures(name, tmp_path):
    write_video(tmp_path / name, sound_seconds=4)
    assert slrt.open_array(tmp_path / name).shape[-1] == len(FRAMES)


def test_frames_that_a_cut_list_leaves_out_are_not_missed(tmp_path):
    write_video(tmp_path / "clip.mp4")
    left_out = 5
    with av.open(str(tmp_path / "clip.mp4")) as old, av.open(str(tmp_path / "t.mp4"), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.size:
                earlier = int(left_out / 10 / packet.time_base)
                packet.pts, packet.dts = packet.pts - earlier, packet.dts - earlier
                packet.stream = stream
                new.mux(packet)
    with av.open(str(tmp_path / "t.mp4")) as trimmed:
        assert trimmed.streams.video[0].frames == len(FRAMES)
    assert slrt.open_array(tmp_path / "t.mp4").shape[-1] == len(FRAMES) - left_out


def test_what_is_wrong_with_a_video_is_told_without_the_names_of_functions(tmp_path):
    (tmp_path / "text.mp4").write_text("hello")
    with pytest.raises(InvalidInput, match=r"text.mp4 cannot be read as a video: .* copy it"):
        slrt.open_array(tmp_path / "text.mp4")
    write_video(tmp_path / "clip.mkv")
    torn = bytearray((tmp_path / "clip.mkv").read_bytes())
    first = ends_of_packets(tmp_path / "clip.mkv")[0]
    torn[first - 300 : first + 3000] = bytes(3300)
    (tmp_path / "torn.mkv").write_bytes(torn)
    with pytest.raises(InvalidInput, match=r"torn.mkv .*copy it again") as refused:
        slrt.open_array(tmp_path / "torn.mkv")
    assert "Errno" not in str(refused.value)
    assert "avcodec" not in str(refused.value)
