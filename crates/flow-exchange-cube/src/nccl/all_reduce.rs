//! Sums in NCCL's own order.

use super::NcclExchange;
use burn::backend::{Dispatch, ops::FloatTensorOps};
use flow_core::RawTensor;
use flow_core::device::ComputeDevice;
use flow_exchange::{Exchange, Lost, ValueType};
use flow_nccl::NcclError;

impl<E: Exchange> NcclExchange<E> {
    /// The sum over all ranks of the rows of this rank's nodes, of `count` values each: those of a rank in the order of its lanes, those of
    /// different ranks as NCCL adds them. It is on the device's way, not yet there.
    pub(super) fn all_reduce(
        &self,
        parts: Vec<RawTensor>,
        (count, device): (usize, &ComputeDevice),
    ) -> Result<RawTensor, Lost> {
        let mark = self.next_mark()?;
        self.agree(count, ValueType::F32)?;
        self.gpu.bind().map_err(|problem| self.lost(problem))?;
        let own = parts.into_iter().reduce(Dispatch::float_add);
        let own = own.ok_or_else(|| self.lost("it has no lane to sum"))?;
        let all = device.empty(&[count]);
        let (from, to) = (self.address(&own)?, self.address(&all)?);
        let stream = self.gpu.stream().map_err(|problem| self.lost(problem))?;
        let communicator = &self.communicator;
        let launched = self.gpu.on_launching_thread(move || {
            let mut group = communicator.group(stream.raw())?;
            // SAFETY: `own` is read alone, and kept until the device is past the group; `all` was made for this on this thread, whose
            // stream is this one: CubeCL gives its memory to no other stream, and to this one only behind the group.
            unsafe { group.all_reduce(from, to, count)? };
            group.end()
        });
        let launched: Result<(), NcclError> = launched.map_err(|problem| self.lost(problem))?;
        launched.map_err(|error| self.lost(error))?;
        self.until(|exchange| exchange.is_ready())?;
        self.end_at(mark, stream, vec![own])?;
        Ok(all)
    }
}
