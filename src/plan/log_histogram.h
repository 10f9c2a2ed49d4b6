// How often a positive number fell where, in buckets that grow with it: 256 to each doubling, so
// that any question about it is answered to 0.3 %, and whole numbers up to 512 exactly. Counts may
// be fractions: they are weights.
#pragma once

#include <cstddef>
#include <vector>

namespace aquifer {

class LogHistogram {
 public:
  void Add(double value, double weight = 1);

  double total() const { return total_; }
  // The weight of all values up to `value`, straight within a bucket.
  double UpTo(double value) const;
  // The value that this part (0 to 1) of the weight does not exceed; 0 where nothing was added.
  double Quantile(double part) const;

 private:
  std::vector<double> buckets_;
  double total_ = 0;
};

}  // namespace aquifer
