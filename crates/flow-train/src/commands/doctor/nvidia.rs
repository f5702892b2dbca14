//! NVIDIA's driver, GPUs, CUDA toolkit and NVRTC, looked for as CubeCL looks for them; no build needs any of it to look.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is there.
pub struct Cuda {
    /// The driver and its version.
    pub driver: Option<String>,
    /// Each GPU in words.
    pub gpus: Vec<String>,
    /// The toolkit's folder, and who named it.
    toolkit: Option<(PathBuf, &'static str)>,
    /// The library that compiles kernels, and whether the loader finds it there.
    nvrtc: Option<(PathBuf, bool)>,
}

impl Cuda {
    /// Looks.
    pub fn find() -> Self {
        let (gpus, of_gpus) = smi().unwrap_or_default();
        let toolkit = toolkit();
        Self {
            driver: of_gpus.or_else(module).map(|version| format!("NVIDIA {version}")),
            gpus,
            nvrtc: nvrtc(toolkit.as_ref().map(|(root, _)| root.as_path())),
            toolkit,
        }
    }

    /// The toolkit in words.
    pub fn toolkit_text(&self) -> String {
        match &self.toolkit {
            None => "no CUDA toolkit".into(),
            Some((root, by)) => format!(
                "{} ({by}), headers {}",
                root.display(),
                match has_headers(root) {
                    true => "there",
                    false => "missing",
                }
            ),
        }
    }

    /// NVRTC in words.
    pub fn nvrtc_text(&self) -> String {
        match &self.nvrtc {
            None => "not found".into(),
            Some((path, true)) => path.display().to_string(),
            Some((path, false)) => format!("{}, where the loader does not look", path.display()),
        }
    }

    /// What kernels need to be compiled and is not there, with what to do.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        match &self.toolkit {
            Some((root, _)) if has_headers(root) => {}
            Some((root, _)) => missing.push(format!(
                "kernels are compiled with CUDA's headers, and {} has no include/cuda.h: install the toolkit's headers there, or \
                 set CUDA_PATH to a folder that has them",
                root.display()
            )),
            None => missing.push(
                "kernels are compiled with CUDA's headers: install the CUDA 13 toolkit, or set CUDA_PATH to the folder that has \
                 include/cuda.h"
                    .into(),
            ),
        }
        match &self.nvrtc {
            Some((_, true)) => {}
            Some((path, false)) => missing.push(format!(
                "the loader does not find NVRTC: add {} to LD_LIBRARY_PATH",
                path.parent().unwrap_or(path).display()
            )),
            None => missing.push(
                "kernels are compiled by NVRTC, and there is no libnvrtc: install the CUDA 13 toolkit, or the package \
                 `nvidia-cuda-nvrtc` of PyPI and add its folder `lib` to LD_LIBRARY_PATH"
                    .into(),
            ),
        }
        missing
    }
}

fn has_headers(root: &Path) -> bool {
    root.join("include/cuda.h").is_file()
}

/// GPUs in words and the driver's version, as `nvidia-smi` has them.
fn smi() -> Option<(Vec<String>, Option<String>)> {
    let asked = "--query-gpu=index,name,memory.total,compute_cap,driver_version";
    let output = Command::new("nvidia-smi")
        .args([asked, "--format=csv,noheader,nounits"])
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    Some(gpus(&String::from_utf8_lossy(&output.stdout)))
}

/// The rows of `nvidia-smi`: index, name, memory in MiB, compute capability, version of the driver.
fn gpus(rows: &str) -> (Vec<String>, Option<String>) {
    let mut driver = None;
    let mut found = Vec::new();
    for row in rows.lines() {
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        let [index, name, memory_mib, capability, version] = cells[..] else {
            continue;
        };
        let memory = match memory_mib.parse::<f64>() {
            Ok(mib) => format!("{:.1} GiB", mib / 1024.0),
            Err(_) => "memory unknown".into(),
        };
        found.push(format!(
            "cuda:{index}: {name}, {memory}, compute capability {capability}"
        ));
        driver = Some(version.to_owned());
    }
    (found, driver)
}

/// The version of the driver's kernel module.
fn module() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let words = text.lines().next()?.split_whitespace();
    let version = words
        .into_iter()
        .find(|word| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.'));
    Some(version.unwrap_or("of an unknown version").to_owned())
}

/// The toolkit's folder in the order in which CubeCL looks for it.
fn toolkit() -> Option<(PathBuf, &'static str)> {
    if let Some(named) = std::env::var_os("CUDA_PATH") {
        return Some((named.into(), "CUDA_PATH"));
    }
    ["/usr/local/cuda", "/opt/cuda"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .or_else(|| Path::new("/usr/bin/nvcc").exists().then_some("/usr"))
        .map(|path| (path.into(), "found"))
}

/// NVRTC where the loader looks, or else in the toolkit.
fn nvrtc(toolkit: Option<&Path>) -> Option<(PathBuf, bool)> {
    let loader = loader_folders().into_iter().map(|folder| (folder, true));
    let own = toolkit.into_iter().flat_map(|root| {
        [
            "lib64",
            "lib",
            "targets/x86_64-linux/lib",
            "targets/sbsa-linux/lib",
        ]
        .map(|below| (root.join(below), false))
    });
    loader
        .chain(own)
        .find_map(|(folder, loads)| Some((library(&folder)?, loads)))
}

fn library(folder: &Path) -> Option<PathBuf> {
    let is_library = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name == "libnvrtc.so" || name.starts_with("libnvrtc.so."))
    };
    let entries = fs::read_dir(folder).ok()?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(is_library)
        .collect();
    found.sort();
    found.into_iter().next()
}

/// Folders in which the loader of a Linux system looks for libraries.
fn loader_folders() -> Vec<PathBuf> {
    let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&named)
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    let lists = fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten();
    for list in lists.filter_map(Result::ok) {
        let text = fs::read_to_string(list.path()).unwrap_or_default();
        folders.extend(
            text.lines()
                .map(str::trim)
                .filter(|line| line.starts_with('/'))
                .map(PathBuf::from),
        );
    }
    folders.extend(["/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_read_from_what_nvidia_smi_prints() {
        let rows =
            "0, NVIDIA H100 80GB HBM3, 81559, 9.0, 580.65.06\n1, Tesla T4, [N/A], 7.5, 580.65.06\n\nnoise\n";
        let (gpus, driver) = gpus(rows);
        assert_eq!(driver.as_deref(), Some("580.65.06"));
        assert_eq!(
            gpus,
            [
                "cuda:0: NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0",
                "cuda:1: Tesla T4, memory unknown, compute capability 7.5",
            ]
        );
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let mut cuda = Cuda {
            driver: None,
            gpus: Vec::new(),
            toolkit: Some((root.clone(), "CUDA_PATH")),
            nvrtc: nvrtc(Some(&root)).filter(|(_, loads)| !loads),
        };
        let missing = cuda.missing();
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(missing[0].contains("include/cuda.h") && missing[1].contains("libnvrtc"));
        fs::create_dir_all(root.join("include")).unwrap();
        fs::create_dir_all(root.join("lib64")).unwrap();
        fs::write(root.join("include/cuda.h"), "").unwrap();
        fs::write(root.join("lib64/libnvrtc.so.13"), "").unwrap();
        cuda.nvrtc = Some((library(&root.join("lib64")).unwrap(), false));
        let missing = cuda.missing();
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert!(missing[0].contains("LD_LIBRARY_PATH"), "{missing:?}");
    }
}
