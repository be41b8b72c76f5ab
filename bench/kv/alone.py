"""Imports single modules of a package out of its wheel, without the package: everything else it asks for is a stub.

    modules = alone.load("vllm-0.32.0-...whl", "vllm", ["v1.core.block_pool", "utils.math_utils"])
    pool = modules["v1.core.block_pool"].BlockPool(...)

Nothing of the package is installed, unpacked or changed. A stub can be called, subclassed, subscripted and used as a
decorator, which is all that importing needs; if a measured function really used one, it would fail.
"""
import importlib.abc
import importlib.machinery
import sys
import types
import zipfile


class _Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub(name)

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __getitem__(cls, key):
        return cls

    def __iter__(cls):
        return iter(())


class _Stub(metaclass=_Meta):
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):  # as a decorator it returns what it decorates
        return args[0] if len(args) == 1 and callable(args[0]) else None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub()


def _stub(name):
    return _Meta(name, (_Stub,), {})


class _StubModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, wheel, package, real, stubs):
        self.zip, self.package, self.stubs = zipfile.ZipFile(wheel), package, stubs
        self.real = {f"{package}.{name}" for name in real}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in (self.package, *self.stubs):
            return importlib.machinery.ModuleSpec(name, self, is_package=name not in self.real)
        return None

    def create_module(self, spec):
        return None if spec.name in self.real else _StubModule(spec.name)

    def exec_module(self, module):
        if module.__name__ in self.real:
            path = module.__name__.replace(".", "/") + ".py"
            exec(compile(self.zip.read(path), path, "exec"), module.__dict__)


def load(wheel, package, real, stubs=()):
    """`stubs` are other top-level packages that are not installed."""
    sys.meta_path.insert(0, _Finder(wheel, package, real, stubs))
    return {name: importlib.import_module(f"{package}.{name}") for name in real}
