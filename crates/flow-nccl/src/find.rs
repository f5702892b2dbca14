//! Where NCCL's library may be.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The names by which the loader may know it. PyTorch's wheel and distributions install the first one alone.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Prints where the Python that is there keeps NVIDIA's wheel.
const ASK_PYTHON: &str = "import nvidia.nccl as n; print(list(n.__path__)[0])";

/// Files and names to try, in order: `path` alone if there is one.
pub(crate) fn candidates(path: Option<&Path>) -> impl Iterator<Item = PathBuf> + use<> {
    let given = path.map(Path::to_owned);
    let found = given.is_none();
    let names = NAMES.into_iter().filter(move |_| found).map(PathBuf::from);
    // Python is asked last, and only if the others fail: it takes a tenth of a second.
    let wheel = std::iter::once(())
        .filter(move |()| found)
        .filter_map(|()| in_wheel());
    given.into_iter().chain(names).chain(wheel)
}

/// The library in the wheel `nvidia-nccl-cu13` (or -cu12), which PyTorch brings along.
fn in_wheel() -> Option<PathBuf> {
    let output = Command::new("python3").args(["-c", ASK_PYTHON]).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    let library = Path::new(folder.trim()).join("lib").join(NAMES[0]);
    library.is_file().then_some(library)
}
