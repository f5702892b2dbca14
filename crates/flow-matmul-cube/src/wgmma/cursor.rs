//! The producer's cursor: the next step to copy in a block's list of work items, some steps ahead of the products.

use crate::wgmma::Record;
use cubecl::prelude::*;

/// Where the words of a cursor are in its array.
pub(super) const ITEM: usize = 0;
pub(super) const STEP_AT: usize = 1;
pub(super) const END: usize = 2;
pub(super) const A_ROW: usize = 3;
pub(super) const B_ROW: usize = 4;

/// Moves the cursor to step `over` of item `item`; behind the last item it does not move.
#[cube]
pub(super) fn enter(cursor: &mut Array<u32>, items: &[Record], item: u32, last: u32, over: u32) {
    cursor[ITEM] = item;
    if item < last {
        let record = items[(2 * item) as usize];
        cursor[A_ROW] = record.extract(0usize);
        cursor[B_ROW] = record.extract(1usize);
        cursor[STEP_AT] = record.extract(2usize) + over;
        cursor[END] = record.extract(3usize);
    }
}

/// Moves the cursor on by `steps` steps, through as many items as that takes.
#[cube]
pub(super) fn advance(cursor: &mut Array<u32>, items: &[Record], last: u32, steps: u32) {
    cursor[STEP_AT] += steps;
    while cursor[ITEM] < last && cursor[STEP_AT] >= cursor[END] {
        let over = cursor[STEP_AT] - cursor[END];
        let item = cursor[ITEM] + 1;
        enter(cursor, items, item, last, over);
    }
}
