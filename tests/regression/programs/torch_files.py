"""Writes PyTorch's files without PyTorch: torch.save() of new and old versions. Source: torch/serialization.py."""

import io
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict

import numpy

STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage", "uint8": "ByteStorage"}


def stand_in(module, name):
    """A class that pickles as `module`.`name`."""
    sys.modules.setdefault(module, types.ModuleType(module))
    thing = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, thing)
    return thing


META = "torch.distributed.checkpoint.metadata"
METADATA, TENSOR_STORAGE, BYTES_STORAGE, INDEX = (
    stand_in(META, name) for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "MetadataIndex"))
STORAGE_INFO = stand_in("torch.distributed.checkpoint.filesystem", "_StorageInfo")
SIZE = stand_in("torch", "Size")
REBUILD = stand_in("torch._utils", "_rebuild_tensor_v2")
TYPES = {kind: stand_in("torch", name) for kind, name in STORAGES.items()}


class Storage:
    def __init__(self, key, array):
        self.key, self.array = key, array


class Call:
    """Pickles as the call of a function."""
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return (Function(self.function), self.arguments)


class Function:
    """Pickles as a global of its stand-in, which need not be callable here."""
    def __init__(self, thing):
        self.thing = thing

    def __call__(self):
        raise NotImplementedError


class Pickler(pickle._Pickler):  # pylint: disable=protected-access
    """Turns numpy arrays into tensors, and their elements into storages."""
    def __init__(self, file, legacy):
        super().__init__(file, protocol=2)
        self.legacy, self.storages = legacy, []

    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        kind = TYPES[str(obj.array.dtype)]
        view = (None,) if self.legacy else ()
        return ("storage", kind, obj.key, "cpu", obj.array.size) + view

    def reducer_override(self, obj):
        return NotImplemented

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Function):
            return super().save(obj.thing)
        if isinstance(obj, numpy.ndarray):
            # Every other tensor is a view into a longer storage.
            offset = len(self.storages) % 2
            array = numpy.concatenate([numpy.zeros(offset, obj.dtype), numpy.ascontiguousarray(obj).ravel()])
            storage = Storage(str(len(self.storages)), array)
            self.storages.append(storage)
            strides = tuple(stride // obj.itemsize for stride in numpy.ascontiguousarray(obj).strides)
            obj = Call(REBUILD, storage, offset, obj.shape, strides, False, OrderedDict())
        return super().save(obj, save_persistent_id)


def save_zip(file, value):
    """torch.save(value, file) of PyTorch 1.6 and newer."""
    text = io.BytesIO()
    pickler = Pickler(text, False)
    pickler.dump(value)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", text.getvalue())
        for storage in pickler.storages:
            archive.writestr(f"archive/data/{storage.key}", storage.array.tobytes())
        archive.writestr("archive/version", "3\n")


def save(path, value, legacy=False):
    """torch.save(value, path) of PyTorch 1.6 and newer, or of the older form."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not legacy:
        return save_zip(path, value)
    text = io.BytesIO()
    pickler = Pickler(text, legacy)
    pickler.dump(value)
    with open(path, "wb") as file:
        for header in (0x1950a86a20f9469cfc6c, 1001, {"little_endian": True}):
            pickle.dump(header, file, protocol=2)
        file.write(text.getvalue())
        pickle.dump([storage.key for storage in pickler.storages], file, protocol=2)
        for storage in pickler.storages:
            file.write(struct.pack("<q", storage.array.size) + storage.array.tobytes())
