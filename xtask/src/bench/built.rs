//! The programs that are measured: given, or built here.

use crate::process::{cargo, run as run_command};
use crate::workspace::Workspace;
use anyhow::Result;
use std::path::PathBuf;

/// A program of the workspace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Built {
    package: &'static str,
    example: Option<&'static str>,
    cuda: bool,
}

impl Built {
    /// The package's program, which has its name.
    pub fn program(package: &'static str) -> Self {
        Self {
            package,
            example: None,
            cuda: false,
        }
    }

    /// An example of the package.
    pub fn example(package: &'static str, example: &'static str) -> Self {
        Self {
            example: Some(example),
            ..Self::program(package)
        }
    }

    /// For NVIDIA GPUs, too, if `cuda`.
    pub fn with_cuda(self, cuda: bool) -> Self {
        Self { cuda, ..self }
    }

    /// The path of the one that is `given`, else of this one, built first.
    pub fn or_given(self, workspace: &Workspace, given: &Option<PathBuf>) -> Result<PathBuf> {
        if let Some(given) = given {
            return Ok(given.clone());
        }
        let mut build = vec!["build", "--release", "--package", self.package];
        if let Some(example) = self.example {
            build.extend(["--example", example]);
        }
        if self.cuda {
            build.extend(["--features", "cuda"]);
        }
        run_command(&mut cargo(workspace, &build))?;
        let folder = workspace.release_folder()?;
        Ok(match self.example {
            Some(example) => folder.join("examples").join(example),
            None => folder.join(self.package),
        })
    }
}
