// The benchmark is a table of rows. A row names one thing that we do, what bounds it, and the least
// share of that bound that we mean to reach. Its contest measures the bound, us and others in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

// Everything that a row may use.
struct BenchEnvironment {
  std::string directory;  // Empty, on the disk to be measured; removed at the end.
  uint64_t memory_available_bytes = 0;
  bool quick = false;
  // A row that took longer than this ends early, after three rounds at the least. 0: never.
  double row_seconds = 0;
  // A quick row that took less than this goes on, to as many rounds as it has otherwise: one bad
  // second of the machine is then not most of what was measured.
  double least_seconds = 0;
};

// One row's contenders, made ready: memory is faulted in, files are written. Each call is one round
// of one contender, measured in the row's unit, without what it takes to set the round up.
class Contest {
 public:
  virtual ~Contest() = default;

  virtual Result<double> Limit() = 0;
  virtual Result<double> Ours() = 0;

  virtual std::vector<std::string> PeerNames() const { return {}; }
  virtual Result<double> Peer(size_t peer);

  // Names the limit when it shows only at run time. Empty: as the row says.
  virtual std::string LimitIs() const { return {}; }
  // Something a reader of the figures should know. Asked for after the last round.
  virtual std::string Note() const { return {}; }
};

struct Row {
  std::string name;  // "dram.fetch/2MiB"
  std::string unit;
  std::string limit_is;
  double goal = 0;  // The least ratio.
  bool higher_is_better = true;
  std::function<Result<std::unique_ptr<Contest>>(const BenchEnvironment&)> prepare;
  int rounds = 15;
  int quick_rounds = 5;
};

// The families. Each adds its rows in the order they are shown.
void AddDramRows(std::vector<Row>* rows);
void AddNodeRows(std::vector<Row>* rows);     // Where there is a node.
void AddGpuRows(std::vector<Row>* rows);      // Where there is a GPU.
void AddGpuNodeRows(std::vector<Row>* rows);  // Where there are both.
void AddNvmeRows(std::vector<Row>* rows);
void AddPosixRows(std::vector<Row>* rows);
void AddRecoverRows(std::vector<Row>* rows);
void AddKeyRows(std::vector<Row>* rows);
void AddChecksumRows(std::vector<Row>* rows);
void AddCodecRows(std::vector<Row>* rows);
void AddSealRows(std::vector<Row>* rows);
void AddRedisRows(std::vector<Row>* rows);  // Where there is hiredis to compare with.
// None where the server that they need is not installed.
void AddObjectRows(std::vector<Row>* rows);
void AddIndexRows(std::vector<Row>* rows);
void AddPolicyRows(std::vector<Row>* rows);

// The block sizes that rows come in.
inline constexpr uint64_t kBenchBlockBytes[] = {uint64_t{64} << 10, uint64_t{1} << 20,
                                                uint64_t{2} << 20, uint64_t{8} << 20};

}  // namespace aquifer
