// Which blocks are worth a write to NVMe, by how likely they are to be asked for again. Flash wears
// out by the write, and a budget may pay for less than what is stored: of the blocks that are
// stored a part is written, those most likely to return. The probability that this takes moves by
// itself, so that the part comes out right whatever the load.
#pragma once

#include <cstdint>

namespace aquifer {

struct WriteThresholdOptions {
  double written_part = 0.65;  // Of all blocks that are offered. 1: all of them.
};

class WriteThreshold {
 public:
  explicit WriteThreshold(const WriteThresholdOptions& options) : options_(options) {}

  // For each block once. Of what is offered, the affordable part can be written at the moment.
  [[nodiscard]] bool Admit(double reuse_probability, double affordable_part = 1);

  // Whether a block that was not admitted would be now.
  bool Passes(double reuse_probability) const { return reuse_probability >= threshold_; }
  // A block that was not admitted is written all the same.
  void Reverse();

  double threshold() const { return threshold_; }

 private:
  void Move(double by);

  const WriteThresholdOptions options_;
  double threshold_ = 0;  // Everything, to begin with.
};

// How much of what is offered can be written while so many bytes wait to be: all of it up to an
// eighth of what may wait, less and less from there on, and nothing at that. So as much waits in
// the end as lets through what is written.
double AffordablePart(uint64_t waiting_bytes, uint64_t most_waiting_bytes);

}  // namespace aquifer
