//! What a config can ask for by name.

use flow_accel::AcceleratorRegistry;
use flow_attention::AttentionRegistry;
use flow_config::Catalog;
use flow_kernels::KernelRegistry;
use flow_registry::NameTaken;
use flow_trainer::Plugins;

/// The registries of a program. Nothing registers itself: a plugin is a function that adds to one of them.
#[derive(Debug, Default)]
pub struct Registries {
    /// Data sets, architectures and rewards.
    pub plugins: Plugins,
    /// Implementations of the fused operations.
    pub kernels: KernelRegistry,
    /// Implementations of attention.
    pub attention: AttentionRegistry,
    /// Accelerators.
    pub accelerators: AcceleratorRegistry,
}

impl Registries {
    /// Everything that this workspace brings.
    ///
    /// # Errors
    /// If two plug-ins have one name, which the tests rule out for those of this workspace.
    pub fn built_in() -> Result<Self, NameTaken> {
        let mut registries = Self {
            plugins: Plugins::built_in()?,
            ..Self::default()
        };
        flow_kernels::register(&mut registries.kernels)?;
        flow_attention::register(&mut registries.attention)?;
        flow_accelerators::register(&mut registries.accelerators, &registries.attention)?;
        Ok(registries)
    }

    /// What a config may say of its plug-ins. Made anew at each call, and worth keeping.
    pub fn catalog(&self) -> Catalog {
        self.plugins.catalog()
    }
}
