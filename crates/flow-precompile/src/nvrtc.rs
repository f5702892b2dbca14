//! From CUDA C++ to machine code, with the options of CubeCL's CUDA runtime.
//!
//! For an architecture that exists (`sm_90a`, not `compute_90a`) NVRTC runs the assembler as well. CubeCL takes the PTX
//! alone, and the driver assembles it again when it loads the module: 0.2 to 0.6 s for each of the larger kernels, which it
//! does not need for machine code.

use crate::NotCompiled;
use cubecl_cuda::install;
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString, c_char};

/// CUDA's headers, as options of the compiler; `None` without a CUDA toolkit.
pub(crate) fn headers() -> Option<Vec<String>> {
    install::cuda_path()?;
    let include = |path: std::path::PathBuf| format!("--include-path={}", path.display());
    let own = install::cccl_include_path();
    let mut out = vec![include(install::include_path())];
    if own.exists() {
        out.push(include(own));
    }
    Some(out)
}

/// A program of NVRTC's, until it is dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created below and is destroyed once. What can fail is an address that is none.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Machine code of `source` (an ELF image) for a device of this compute capability (90 for 9.0), with the [`headers`].
pub(crate) fn machine_code(
    source: &str,
    architecture: u32,
    headers: &[String],
) -> Result<Vec<c_char>, NotCompiled> {
    let failed = |what: &str, error: result::NvrtcError| NotCompiled(format!("NVRTC {what}: {error}"));
    let source = CString::new(source).map_err(|error| NotCompiled(error.to_string()))?;
    // From Hopper on there is what only this very architecture has, such as `wgmma`.
    let own = if architecture >= 90 { "a" } else { "" };
    let mut options = vec![
        format!("--gpu-architecture=sm_{architecture}{own}"),
        "-lineinfo".into(),
    ];
    options.extend_from_slice(headers);
    let program =
        Program(result::create_program(&source, None).map_err(|error| failed("made no program", error))?);
    // SAFETY: the program was created above, and `source` lives longer.
    unsafe {
        if let Err(error) = result::compile_program(program.0, &options) {
            let log = result::get_program_log(program.0).map_err(|error| failed("has no log", error))?;
            let log = CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned();
            return Err(NotCompiled(format!("NVRTC refused the source ({error}): {log}")));
        }
        let mut size = 0;
        sys::nvrtcGetCUBINSize(program.0, &raw mut size)
            .result()
            .map_err(|error| failed("gave no code", error))?;
        if size == 0 {
            return Err(NotCompiled("NVRTC gave PTX alone".into()));
        }
        let mut code: Vec<c_char> = vec![0; size];
        sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr())
            .result()
            .map_err(|error| failed("gave no code", error))?;
        Ok(code)
    }
}
