// Which blocks are worth a write to NVMe, by how likely they are to be asked for again. Flash wears
// out by the write: of the blocks that are stored a given part is written, those most likely to
// return. The probability that this takes moves by itself, so that the part comes out right
// whatever the load.
#pragma once

namespace aquifer {

struct WriteThresholdOptions {
  double written_part = 0.65;  // Of all blocks that are offered. 1: all of them.
};

class WriteThreshold {
 public:
  explicit WriteThreshold(const WriteThresholdOptions& options) : options_(options) {}

  // For each block once.
  [[nodiscard]] bool Admit(double reuse_probability);

  double threshold() const { return threshold_; }

 private:
  const WriteThresholdOptions options_;
  double threshold_ = 0;  // Everything, to begin with.
};

}  // namespace aquifer
