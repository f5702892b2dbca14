//! The compile check: CUDA sources through NVRTC and ptxas of CUDA 13.0, without a GPU. Nothing may spill, leave its budget
//! of registers, have arrays in local memory, or make ptxas warn, as it does of `wgmma` that is not asynchronous (C75xx).
//!
//! `cargo xtask ptx` fetches the compilers and runs the checks.

use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Resources of a compiled kernel, as ptxas reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Of a thread.
    pub registers: usize,
    /// Stored and loaded.
    pub spilled_bytes: usize,
    /// What a thread has of local memory: arrays that are not in registers. The driver sets it aside for every thread that
    /// the device can hold, 16 KiB a thread being 4 GiB.
    pub stack_bytes: usize,
    /// Lines that warn; those of `wgmma` that is not asynchronous are C75xx.
    pub warnings: Vec<String>,
}

impl Report {
    /// What is wrong with a kernel whose threads may have `budget` registers, if anything.
    pub fn problem(&self, budget: usize) -> Option<String> {
        if !self.warnings.is_empty() {
            return Some(self.warnings.join("; "));
        }
        if self.spilled_bytes != 0 {
            return Some(format!("{} bytes spill", self.spilled_bytes));
        }
        if self.stack_bytes != 0 {
            return Some(format!("{} bytes of local memory a thread", self.stack_bytes));
        }
        let registers = self.registers;
        (registers > budget).then(|| format!("{registers} registers, the budget is {budget}"))
    }
}

/// A kernel to check.
#[derive(Clone, Copy, Debug)]
pub struct CheckedKernel<'a> {
    /// Of the GPU, as NVRTC calls it: `sm_90a`.
    pub arch: &'a str,
    /// For messages.
    pub name: &'a str,
    /// CUDA C++.
    pub text: &'a str,
    /// Registers that a thread may have.
    pub budget: usize,
}

/// Compiles all `kernels` on all cores; what is wrong with each, in no order.
pub fn check(compiler: &Compiler, kernels: &[CheckedKernel<'_>]) -> Vec<String> {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let problem = match compiler.compile(kernel.arch, kernel.text) {
                        Ok(report) => report.problem(kernel.budget),
                        Err(error) => Some(error),
                    };
                    if let Some(problem) = problem {
                        let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
                        wrong.push(format!("{} for {}: {problem}", kernel.name, kernel.arch));
                    }
                }
            });
        }
    });
    wrong.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The compilers of one CUDA tree.
#[derive(Debug)]
pub struct Compiler {
    root: PathBuf,
    nvrtc: Library,
    /// NVRTC opens it by name.
    _builtins: Library,
}

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type GetSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type GetText = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

fn open(folder: &Path, start: &str) -> Result<Library, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("`{}`: {error}", folder.display()))?;
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(start) && !name.contains("alt")
    };
    let path = entries.flatten().map(|entry| entry.path()).find(named);
    let path = path.ok_or_else(|| format!("no `{start}…` in `{}`: is this CUDA 13.0?", folder.display()))?;
    // SAFETY: NVIDIA's libraries do nothing when they are opened.
    unsafe { Library::new(&path) }.map_err(|error| format!("`{}`: {error}", path.display()))
}

impl Compiler {
    /// Those of the CUDA tree at `root`.
    ///
    /// # Errors
    /// What is not there.
    pub fn new(root: &Path) -> Result<Self, String> {
        let folder = ["lib", "lib64"]
            .map(|name| root.join(name))
            .into_iter()
            .find(|path| path.is_dir());
        let folder = folder.ok_or_else(|| format!("`{}` has no folder lib or lib64", root.display()))?;
        let builtins = open(&folder, "libnvrtc-builtins.so.13.0")?;
        Ok(Self {
            nvrtc: open(&folder, "libnvrtc.so.13")?,
            _builtins: builtins,
            root: root.to_path_buf(),
        })
    }

    /// Compiles CUDA C++ for `arch`, as CubeCL does at run time.
    ///
    /// # Errors
    /// The compilers' words.
    pub fn compile(&self, arch: &str, source: &str) -> Result<Report, String> {
        let ptx = self.ptx(arch, source)?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (from, to) = (
            folder.path().join("kernel.ptx"),
            folder.path().join("kernel.cubin"),
        );
        std::fs::write(&from, ptx).map_err(|error| error.to_string())?;
        let ptxas = self.root.join("bin").join("ptxas");
        let done = Command::new(&ptxas)
            .args(["-v", "-arch", arch])
            .arg(&from)
            .arg("-o")
            .arg(&to)
            .output();
        let done = done.map_err(|error| format!("`{}`: {error}", ptxas.display()))?;
        let said =
            String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
        if !done.status.success() {
            return Err(format!("ptxas: {said}"));
        }
        read(&said)
    }

    /// The PTX that NVRTC makes of CUDA C++ for `arch`.
    ///
    /// # Errors
    /// Its words.
    pub fn ptx(&self, arch: &str, source: &str) -> Result<String, String> {
        let include = self.root.join("include");
        let options = [
            format!("--gpu-architecture={arch}"),
            format!("--include-path={}", include.display()),
            format!("--include-path={}", include.join("cccl").display()),
            "-lineinfo".into(),
        ];
        let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let source = text(source)?;
        let options = options
            .iter()
            .map(|option| text(option))
            .collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: signatures are those of nvrtc.h; strings live until the calls are over, buffers are as long as asked for.
        unsafe {
            let create = self.symbol::<Create>(b"nvrtcCreateProgram")?;
            let compile = self.symbol::<Compile>(b"nvrtcCompileProgram")?;
            let destroy = self.symbol::<Destroy>(b"nvrtcDestroyProgram")?;
            if create(&mut program, source.as_ptr(), null(), 0, null(), null()) != 0 {
                return Err("NVRTC makes no program".into());
            }
            let done = match compile(program, options.len() as c_int, options.as_ptr()) {
                0 => self.text(program, b"nvrtcGetPTXSize", b"nvrtcGetPTX"),
                _ => Err(self.text(program, b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog")?),
            };
            destroy(&mut program);
            done
        }
    }

    unsafe fn symbol<T: Copy>(&self, name: &[u8]) -> Result<T, String> {
        // SAFETY: the caller gives the type that nvrtc.h does.
        unsafe { self.nvrtc.get::<T>(name) }
            .map(|symbol| *symbol)
            .map_err(|error| error.to_string())
    }

    unsafe fn text(&self, program: Program, size: &[u8], get: &[u8]) -> Result<String, String> {
        // SAFETY: as in `ptx`.
        unsafe {
            let mut length = 0;
            self.symbol::<GetSize>(size)?(program, &mut length);
            let mut bytes = vec![0u8; length];
            self.symbol::<GetText>(get)?(program, bytes.as_mut_ptr().cast());
            // The last byte is a zero.
            bytes.pop();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
    }
}

/// The numbers in ptxas's words.
fn read(said: &str) -> Result<Report, String> {
    let before = |line: &str, what: &str| -> Option<usize> {
        let (number, _) = line.split_once(what)?;
        number.trim().rsplit([' ', ',']).next()?.parse().ok()
    };
    let mut report = Report::default();
    let mut found = [false; 2];
    for line in said.lines() {
        if let Some(registers) = before(line, " registers") {
            report.registers = report.registers.max(registers);
            found[0] = true;
        }
        if let Some(stack) = before(line, " bytes stack frame") {
            report.stack_bytes = report.stack_bytes.max(stack);
        }
        if let (Some(stores), Some(loads)) = (
            before(line, " bytes spill stores"),
            before(line, " bytes spill loads"),
        ) {
            report.spilled_bytes += stores + loads;
            found[1] = true;
        }
        if line.contains("warning") || line.contains("C75") {
            report.warnings.push(line.trim().to_owned());
        }
    }
    match found {
        [true, true] => Ok(report),
        _ => Err(format!("ptxas says nothing of registers or spills: {said}")),
    }
}
