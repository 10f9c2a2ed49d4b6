#include "block/codec/plane_overlap.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace aquifer {
namespace {

using Axis = StridedSet::Axis;
using Axes = std::array<Axis, 3>;

// Falling strides; axes of one entry, whose stride says nothing, at the end.
Axes Sorted(Axes axes) {
  for (Axis& axis : axes) {
    if (axis.count <= 1) axis = {1, 0};
  }
  std::ranges::sort(axes, [](const Axis& x, const Axis& y) { return x.stride > y.stride; });
  return axes;
}

// Whether runs of `bytes` at 0 and of `other_bytes` at `distance` overlap for some way of moving
// the second by up to count - 1 strides of each axis, to either side. Strides fall and nest, so
// only the two multiples of a stride on either side of `distance` can bring the runs together.
bool Meet(std::span<const Axis> axes, int64_t distance, int64_t bytes, int64_t other_bytes) {
  if (axes.empty()) return distance < bytes && -distance < other_bytes;
  const Axis& axis = axes.front();
  if (axis.count <= 1) return Meet(axes.subspan(1), distance, bytes, other_bytes);
  const auto stride = static_cast<int64_t>(axis.stride);
  const auto most = static_cast<int64_t>(axis.count - 1);
  const int64_t below = distance / stride - (distance % stride < 0 ? 1 : 0);
  for (const int64_t steps : {below, below + 1}) {
    const int64_t taken = std::clamp(steps, -most, most);
    if (Meet(axes.subspan(1), distance - taken * stride, bytes, other_bytes)) return true;
  }
  return false;
}

// The page's bytes as one run, so that sets whose pages differ inside can still be compared.
StridedSet Solid(const StridedSet& set) {
  StridedSet page = set;
  page.axes[0] = {1, 0};
  return {.base = set.base, .run_bytes = page.Extent(), .axes = {{set.axes[0], {}, {}}}};
}

bool MayOverlap(const StridedSet& x, const StridedSet& y) {
  if (Sorted(x.axes) != Sorted(y.axes)) {
    const StridedSet solid_x = Solid(x);
    const StridedSet solid_y = Solid(y);
    if (solid_x.axes != solid_y.axes || !solid_x.Nested() || !solid_y.Nested()) return true;
    return MayOverlap(solid_x, solid_y);
  }
  const Axes axes = Sorted(x.axes);
  return Meet(axes, static_cast<int64_t>(y.base - x.base), static_cast<int64_t>(x.run_bytes),
              static_cast<int64_t>(y.run_bytes));
}

}  // namespace

uint64_t StridedSet::Extent() const {
  uint64_t extent = run_bytes;
  for (const Axis& axis : axes) {
    uint64_t reach = 0;
    if (axis.count == 0 || __builtin_mul_overflow(axis.count - 1, axis.stride, &reach) ||
        __builtin_add_overflow(extent, reach, &extent)) {
      return UINT64_MAX;
    }
  }
  return extent;
}

bool StridedSet::Nested() const {
  if (Extent() == UINT64_MAX) return false;
  const Axes sorted = Sorted(axes);
  uint64_t inside = run_bytes;
  for (size_t i = sorted.size(); i-- > 0;) {
    if (sorted[i].count <= 1) continue;
    if (sorted[i].stride < inside) return false;
    inside += (sorted[i].count - 1) * sorted[i].stride;
  }
  return true;
}

std::optional<std::pair<size_t, size_t>> FindOverlap(std::span<const StridedSet> sets) {
  std::vector<size_t> order(sets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t x, size_t y) { return sets[x].base < sets[y].base; });
  for (size_t i = 0; i < order.size(); ++i) {
    const StridedSet& set = sets[order[i]];
    const uint64_t end = set.base + set.Extent();
    for (size_t j = i + 1; j < order.size() && sets[order[j]].base < end; ++j) {
      if (MayOverlap(set, sets[order[j]])) return std::minmax(order[i], order[j]);
    }
  }
  return std::nullopt;
}

}  // namespace aquifer
