//! What a program lends to the rewards that it builds: a device, say, of which this crate knows nothing.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

/// Things by their types, at most one of each.
#[derive(Clone, Debug, Default)]
pub struct Lent {
    things: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl Lent {
    /// With `thing`, in the place of another of its type.
    pub fn with<T: Any + Send + Sync>(mut self, thing: T) -> Self {
        self.things.insert(TypeId::of::<T>(), Arc::new(thing));
        self
    }

    /// The thing of type `T`, if one was lent.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.things.get(&TypeId::of::<T>())?.downcast_ref()
    }
}
