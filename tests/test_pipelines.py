"""What pipelines read is what was written, whatever the format; their settings are accepted."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import slrt_dask as slrt
from slrt_dask.config import FitSettings, read_settings
from slrt_dask.errors import SlrtError

PIPELINES = Path(__file__).parent.parent / "pipelines"
FRAMES = np.random.default_rng(0).integers(0, 256, (16, 24, 5), dtype=np.uint8)
COLOURS = np.random.default_rng(1).integers(0, 256, (16, 24, 3, 4), dtype=np.uint8)


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(PIPELINES))


def write_npy(path, frames):
    np.save(path, frames)


def write_npz(path, frames):
    np.savez(path, other=np.zeros(3), X=frames)


def write_zarr(path, frames):
    import zarr

    zarr.create_array(path, data=frames, chunks=(8, 24, *(2 for _ in frames.shape[2:])))


def write_netcdf(path, frames, engine="scipy"):
    xarray = pytest.importorskip("xarray")
    names = [f"mode{number}" for number in range(frames.ndim)]
    xarray.Dataset({"X": (names, frames.astype(np.int16))}).to_netcdf(path, engine=engine)


def write_netcdf4(path, frames):
    pytest.importorskip("h5netcdf")
    write_netcdf(path, frames, engine="h5netcdf")


def write_folder(path, frames):
    image = pytest.importorskip("PIL.Image")
    path.mkdir()
    for number in range(frames.shape[-1]):
        image.fromarray(frames[..., number]).save(path / f"{number:03d}.png")
    (path / "notes.txt").write_text("not an image")


def write_video(path, frames):
    """With a codec that keeps every bit."""
    av = pytest.importorskip("av")
    grey = frames.ndim == 3
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.height, stream.width = frames.shape[:2]
        stream.pix_fmt = "gray" if grey else "bgr0"
        for number in range(frames.shape[-1]):
            image = np.ascontiguousarray(frames[..., number])
            frame = av.VideoFrame.from_ndarray(image, format="gray" if grey else "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


WRITERS = {
    "frames.npy": write_npy,
    "frames.npz": write_npz,
    "frames.zarr": write_zarr,
    "frames.nc": write_netcdf,
    "frames4.nc": write_netcdf4,
    "folder": write_folder,
    "video.avi": write_video,
}


@pytest.mark.parametrize("frames", [FRAMES, COLOURS], ids=["grey", "colours"])
@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_observations_of_the_array_it_came_from(name, frames, tmp_path):
    path = tmp_path / name
    WRITERS[name](path, frames)
    array = slrt.open_array(path)
    assert array.shape == frames.shape
    np.testing.assert_array_equal(np.asarray(array), frames)
    store = slrt.from_file(tmp_path / "store", path)
    np.testing.assert_array_equal(store.to_array(), frames)


@pytest.mark.parametrize("name", ["frames.npy", "video.avi"])
def test_opening_an_array_does_not_read_it_and_a_block_reads_only_itself(
    name, tmp_path, monkeypatch
):
    from slrt_dask.data import arrays, pictures

    read, slices = [], arrays.InFile.__getitem__

    def watched(self, region):
        found = slices(self, region)
        read.append(found.size)
        return found

    monkeypatch.setattr(arrays.InFile, "__getitem__", watched)
    monkeypatch.setattr(pictures, "BLOCK_CELLS", FRAMES[..., 0].size)
    monkeypatch.setattr("slrt_dask.data.files.BLOCK_BYTES", 8 * FRAMES[..., 0].size)
    WRITERS[name](tmp_path / name, FRAMES)
    array = slrt.open_array(tmp_path / name)
    assert sum(read) == 0
    block = array.blocks[0, 0, 0].compute(scheduler="synchronous")
    np.testing.assert_array_equal(block, FRAMES[tuple(slice(length) for length in block.shape)])
    assert 0 < sum(read) <= FRAMES[..., 0].size


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_block_of_a_mapped_file_travels_without_the_rest(by_columns, tmp_path):
    values = np.random.default_rng(0).random((50, 80, 100))
    values = np.asfortranarray(values) if by_columns else values
    np.save(tmp_path / "large.npy", values)
    block = slrt.open_array(tmp_path / "large.npy").rechunk((10, 80, 100)).blocks[3, 0, 0]
    sent = pickle.dumps(block)
    assert len(sent) < 100_000 < values.nbytes
    np.testing.assert_array_equal(pickle.loads(sent).compute(), values[30:40])
    (tmp_path / "large.npy").rename(tmp_path / "moved.npy")
    with pytest.raises(SlrtError, match=r"large.npy cannot be read .* put it where all workers"):
        pickle.loads(sent).compute()


def test_what_was_unpacked_is_read_by_the_process_that_has_it(thread_client, tmp_path, monkeypatch):
    from slrt_dask.data import arrays

    values = np.random.default_rng(0).random((40, 60, 70))
    np.savez(tmp_path / "large.npz", X=values, mask=values < 0.5)
    array = slrt.open_array(tmp_path / "large.npz", key="X")
    done = []
    monkeypatch.setattr(thread_client, "get", lambda *a, **k: done.append(a))
    store = slrt.from_array(tmp_path / "store", 2 * array)
    assert not done
    wanted = np.where(values < 0.5, 2 * values, np.nan)
    np.testing.assert_array_equal(store.to_array(), wanted)
    shared = array + thread_client.persist(array.map_blocks(np.zeros_like))
    assert arrays.scheduler_for(shared) is None


def test_an_image_is_read_as_it_is_and_without_its_transparency(tmp_path):
    image = pytest.importorskip("PIL.Image")
    picture = COLOURS[..., 0]
    opaque = np.concatenate([picture, np.full((16, 24, 1), 255, dtype=np.uint8)], axis=2)
    for name, values, wanted in (
        ("a.png", picture, picture),
        ("b.png", opaque, picture),
        ("c.png", picture[..., 0], picture[..., 0]),
    ):
        image.fromarray(values).save(tmp_path / name)
        np.testing.assert_array_equal(slrt.open_array(tmp_path / name).compute(), wanted)


def write_pages(path, frames=FRAMES, more=()):
    image = pytest.importorskip("PIL.Image")
    pages = [image.fromarray(frames[..., page]) for page in range(frames.shape[-1])]
    pages += [image.fromarray(page) for page in more]
    path.parent.mkdir(exist_ok=True)
    pages[0].save(path, save_all=True, append_images=pages[1:])
    return path


@pytest.mark.parametrize("frames", [FRAMES, COLOURS], ids=["grey", "colours"])
def test_pages_of_an_image_are_its_last_mode(frames, tmp_path):
    path = write_pages(tmp_path / "pages.tif", frames)
    np.testing.assert_array_equal(slrt.open_array(path).compute(), frames)


@pytest.mark.parametrize("order", ["<", ">"])
def test_sixteen_bits_stay_sixteen_bits(order, tmp_path):
    image = pytest.importorskip("PIL.Image")
    values = (np.arange(300, dtype=np.uint16) * 200).reshape(15, 20)
    mode = "I;16" if order == "<" else "I;16B"
    raw = values.astype(f"{order}u2").tobytes()
    image.frombytes(mode, (20, 15), raw).save(tmp_path / "deep.tif")
    with image.open(tmp_path / "deep.tif") as opened:
        assert opened.mode == mode
    array = slrt.open_array(tmp_path / "deep.tif").compute()
    assert array.dtype == np.uint16
    np.testing.assert_array_equal(array, values)


@pytest.mark.parametrize("kind", ["zarr", "npz"])
def test_a_mask_beside_an_array_says_what_is_missing(kind, tmp_path):
    mask = FRAMES > 100
    if kind == "npz":
        np.savez(tmp_path / "masked.npz", X=FRAMES, mask=mask)
    else:
        import zarr

        group = zarr.create_group(tmp_path / "masked.zarr")
        group.create_array("X", data=FRAMES)
        group.create_array("mask", data=mask)
    array = slrt.open_array(tmp_path / f"masked.{kind}", key="X")
    np.testing.assert_array_equal(array.compute(), np.where(mask, FRAMES, np.nan))


def write_mismatched(path):
    write_folder(path, FRAMES)
    pytest.importorskip("PIL.Image").fromarray(FRAMES[:8, :, 0]).save(path / "999.png")
    return path


def write_text(path):
    path.write_text("hello")
    return path


def write_other_mask(path):
    np.savez(path, X=FRAMES, mask=np.ones((3, 4), dtype=bool))
    return path


BAD = {
    "nowhere.npz": (lambda path: path, None, "there is nothing at"),
    "empty": (lambda path: path.mkdir() or path, None, "without a zarr array and without images"),
    "text.png": (write_text, None, "cannot be read as an image"),
    "text.mp4": (write_text, None, "cannot be read as a video"),
    "text.nc": (write_text, None, "netCDF"),
    "text.xyz": (write_text, None, "unknown file type"),
    "frames.mp4": (write_text, "X", "key='X' has no meaning"),
    "masked.npz": (write_other_mask, "X", r"mask has shape \(3, 4\) and the array \(16, 24, 5\)"),
    "pages.tif": (
        lambda path: write_pages(path, more=[FRAMES[:8, :, 0]]),
        None,
        r"page 6 of .*pages.tif has shape \(8, 24\), unlike",
    ),
    "paged": (
        lambda path: write_pages(path / "pages.tif").parent,
        None,
        "pages.tif has 5 pages, and images of a folder must have one",
    ),
    "mixed": (write_mismatched, None, r"999.png has shape \(8, 24\), unlike"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_refused_in_a_sentence(name, tmp_path):
    write, key, words = BAD[name]
    with pytest.raises(SlrtError, match=words):
        np.asarray(slrt.open_array(write(tmp_path / name), key=key))


def test_hidden_and_held_out_entries_are_those_of_the_data(scripts, tmp_path):
    import command
    import shared

    arguments = command.parser("", observed=0.3).parse_args([])
    array = shared.lazy(FRAMES).rechunk((8, 12, 2))
    train, test = shared.hide(array, arguments, tmp_path, 0.3)
    seen, held = train.to_array(), test.to_array()
    both = ~np.isnan(seen) & ~np.isnan(held)
    assert not both.any()
    for part, store in ((seen, train), (held, test)):
        known = ~np.isnan(part)
        np.testing.assert_array_equal(part[known], FRAMES[known])
        assert abs(store.nnz / FRAMES.size - 0.3) < 0.05
    np.testing.assert_array_equal(
        shared.observed_at(train, 2, [4, 1]), np.stack([seen[..., 4], seen[..., 1]], axis=-1)
    )


def test_of_data_with_gaps_all_that_is_known_is_used(scripts, tmp_path):
    import command
    import shared

    arguments = command.parser("", observed=0.1).parse_args([])
    gaps = np.where(FRAMES > 128, FRAMES, np.nan)
    train, test = shared.hide(shared.lazy(gaps), arguments, tmp_path, 0.1)
    assert train.nnz + test.nnz == np.count_nonzero(FRAMES > 128)


RATED = np.array([[7, 30, 4, 0], [7, 12, 5, 700_000], [9, 30, 1, 1_500_000], [2, 12, 3, 10]])


@pytest.mark.parametrize(
    ("name", "separator", "header"),
    [("u.data", "\t", ""), ("ratings.csv", ",", "userId,movieId,rating,timestamp\n"),
     ("ratings.dat", "::", "")],
)  # fmt: skip
def test_ratings_of_any_format_are_the_same(name, separator, header, scripts, tmp_path):
    from rating_files import read_ratings

    lines = [separator.join(str(number) for number in row) for row in RATED]
    (tmp_path / name).write_text(header + "\n".join(lines) + "\n")
    ratings = read_ratings(tmp_path / name)
    np.testing.assert_array_equal(ratings.indices, [[1, 1, 2, 0], [1, 0, 1, 0], [0, 1, 2, 0]])
    np.testing.assert_array_equal(ratings.values, [4, 5, 1, 3])
    assert ratings.shape == (3, 2, 3)
    user, item, time = ratings.indices
    np.savez(tmp_path / "r.npz", user=user, item=item, time=time, rating=ratings.values)
    again = read_ratings(tmp_path / "r.npz")
    np.testing.assert_array_equal(again.indices, ratings.indices)
    assert again.shape == ratings.shape


def test_files_that_are_no_ratings_are_refused_in_a_sentence(scripts, tmp_path):
    from rating_files import read_ratings

    for name, content, words in (
        ("ratings.csv", "1,2\n3,4\n", "line 1 of .*ratings.csv is '1,2'; give a user, an item"),
        ("ratings.csv", "hello\n1,2,3,4\n", "line 1 of .* is 'hello'"),
        ("ratings.csv", "u,i,r,t\n1,2,3,4\n\n1,2,x,4\n", "line 4 of .* is '1,2,x,4'"),
        ("ratings.csv", "u,i,r,t\n", "no ratings after its header"),
        ("u.data", "hello\n1\t2\t3\t4\n", "line 1 of .*u.data is 'hello'"),
        ("u.data", "u\ti\tr\tt\n1\t2\t3\t4\n", "line 1 of .*u.data is "),
        ("u.data", "1\t2\t3\t4\n#\t2\t3\t4\n", "line 2 of .*u.data is "),
        ("u.data", "1\t2\t3\t4\n1\t2\tnan\t4\n", "line 2 of .*u.data is "),
        ("ratings.dat", "1::2::3::4\n1::2:3::4\n", "line 2 of .* is '1::2:3::4'.* '::'"),
        ("ratings.xyz", "1,2,3,4\n", "unknown kind"),
        ("u.data", "", "has no ratings"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(SlrtError, match=words):
            read_ratings(tmp_path / name)
    with pytest.raises(SlrtError, match="nothing at"):
        read_ratings(tmp_path / "nowhere.csv")
    np.savez(tmp_path / "r.npz", user=[1])
    with pytest.raises(SlrtError, match="no array 'item'"):
        read_ratings(tmp_path / "r.npz")


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*/*.toml")), ids=lambda path: path.name)
def test_settings_of_pipelines_are_accepted(path):
    settings = FitSettings(**read_settings(path))
    assert settings.max_iterations > 0


def test_a_plan_says_what_a_fit_would_need(store_of):
    store = store_of(np.ones((6, 5, 4), dtype=bool), np.arange(120.0).reshape(6, 5, 4))
    plain = slrt.plan(store, (2, 2, 2))
    bounded = slrt.plan(store, (2, 2, 2), constraint=slrt.Nonnegative())
    rows = slrt.plan(store, (2, 2, 2), constraint=slrt.Linear.rising(store.shape, mode=0))
    assert plain.in_memory
    assert (plain.extra, bounded.extra, rows.rows) == (None, 0, 5 * 5 * 4)
    judged = slrt.plan(store, (2, 2, 2), validation=store)
    assert judged.largest.total > plain.largest.total
    ranks = (5, 5, 4)  # beyond what a certificate needs anyway
    trusted = slrt.plan(store, ranks, method="rtr")
    assert trusted.largest.fibre_sums > slrt.plan(store, ranks).largest.fibre_sums
    turns = slrt.plan(store, (2, 2, 2), constraint=slrt.Nonnegative(), inner="alternating")
    assert turns.largest.state > bounded.largest.state
    assert "total per worker" in str(plain)
    with pytest.raises(SlrtError, match="ranks that are known"):
        slrt.plan(store, "auto")
