"""Generates the protobuf code at install; the rest of the build is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
PROTOS = ROOT / "protos"
GENERATED = "worldline.v1"


class BuildWithProtos(build_py):
    """`build_py` that first turns protos/worldline/v1/*.proto into worldline/v1/*_pb2*.py."""

    def run(self) -> None:
        """Generate, then build as usual. Generated files are never committed."""
        generate_protos()
        # Packages were looked for before this one was there.
        if GENERATED not in self.packages:
            self.packages = [*self.packages, GENERATED]
        super().run()


def generate_protos() -> None:
    """Write worldline/v1 from the protos with the protoc that grpcio-tools carries."""
    import grpc_tools
    from grpc_tools import protoc

    target = ROOT / "worldline" / "v1"
    target.mkdir(exist_ok=True)
    (target / "__init__.py").write_text('"""Generated from protos/worldline/v1 at install."""\n')
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    sources = sorted(str(path) for path in (PROTOS / "worldline" / "v1").glob("*.proto"))
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTOS}",
            f"--proto_path={well_known}",
            f"--python_out={ROOT}",
            f"--pyi_out={ROOT}",
            f"--grpc_python_out={ROOT}",
            *sources,
        ]
    )
    if status != 0:
        raise SystemExit(f"protoc failed with status {status} on {PROTOS}")


setup(cmdclass={"build_py": BuildWithProtos})
