//! The order of sums: blocks that are summed one after another, and a fixed tree over them.

use std::ops::Range;

/// A number of lanes, and with it the tree by which they are added. A node of `n` lanes has the largest power of two below `n` on its
/// left and the others on its right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    count: usize,
}

impl Lanes {
    /// So many lanes.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(count: usize) -> Self {
        assert!(count > 0, "a sum has at least one lane");
        Self { count }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Those that `rank` of `ranks` sums: consecutive ones, and equally many for each if `ranks` divides them.
    pub fn of_rank(&self, rank: usize, ranks: usize) -> Range<usize> {
        rank * self.count / ranks..(rank + 1) * self.count / ranks
    }

    /// The parts that lane `lane` sums, of `parts` in all: consecutive ones.
    pub fn parts_of(&self, lane: usize, parts: usize) -> Range<usize> {
        lane * parts / self.count..(lane + 1) * parts / self.count
    }

    /// The children of a node.
    fn children(node: &Range<usize>) -> Option<[Range<usize>; 2]> {
        if node.len() < 2 {
            return None;
        }
        let left = (node.len() - 1).ilog2();
        let middle = node.start + (1 << left);
        Some([node.start..middle, middle..node.end])
    }

    /// The largest nodes of the tree that consist of lanes of `range`, in order: one if `range` is itself a node.
    pub fn cover(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut open = Vec::from([Range {
            start: 0,
            end: self.count,
        }]);
        while let Some(node) = open.pop() {
            if node.end <= range.start || range.end <= node.start {
                continue;
            }
            if range.start <= node.start && node.end <= range.end {
                found.push(node);
            } else if let Some([left, right]) = Self::children(&node) {
                open.push(right);
                open.push(left);
            }
        }
        found
    }

    /// Whether a node has these children.
    fn are_children(&self, left: &Range<usize>, right: &Range<usize>) -> bool {
        let wanted = left.start..right.end;
        let mut node = 0..self.count;
        while node != wanted {
            let Some([first, second]) = Self::children(&node) else {
                return false;
            };
            node = match wanted.start < second.start {
                true => first,
                false => second,
            };
            if node.len() < wanted.len() {
                return false;
            }
        }
        Self::children(&node) == Some([left.clone(), right.clone()])
    }
}

/// Sums of nodes that come in order, added to each other as soon as both children of a node are there. At most one for each level of the tree
/// is held.
#[derive(Clone, Debug)]
pub struct Partials<T> {
    lanes: Lanes,
    sums: Vec<(Range<usize>, T)>,
}

impl<T> Partials<T> {
    /// None yet.
    pub fn new(lanes: Lanes) -> Self {
        Self {
            lanes,
            sums: Vec::new(),
        }
    }

    /// Takes the sum of a node, which follows on the one before; `add` adds its second argument to its first.
    pub fn push(&mut self, node: Range<usize>, sum: T, mut add: impl FnMut(&mut T, T)) {
        self.sums.push((node, sum));
        while let [.., (left, _), (right, _)] = &self.sums[..]
            && self.lanes.are_children(left, right)
        {
            let both = left.start..right.end;
            let (_, right) = self.sums.pop().expect("there are two");
            let (node, left) = self.sums.last_mut().expect("there are two");
            add(left, right);
            *node = both;
        }
    }

    /// The sums that have no sibling yet, in order, with their nodes.
    pub fn sums(&self) -> impl Iterator<Item = &(Range<usize>, T)> {
        self.sums.iter()
    }

    /// The same, given away.
    pub fn into_sums(self) -> Vec<(Range<usize>, T)> {
        self.sums
    }
}
