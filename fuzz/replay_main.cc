// The main of a fuzz target in every build that has no libFuzzer. It feeds the target its seed
// corpus, then inputs derived from that corpus with a fixed seed, so that each run of the tests
// executes the parsers on hostile bytes and a failure comes back the next time.
//
//   record_fuzz CORPUS RUNS   CORPUS is a folder that may be missing, or one file to reproduce.
//
// On a crash it saves the guilty input as crash-<target> in the working directory and says so.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace {

using Input = std::vector<uint8_t>;

constexpr size_t kMaxInputBytes = 4096;

// Data for the signal handler, in plain arrays and pointers: it may call very little.
const uint8_t* current_data = nullptr;
size_t current_size = 0;
char crash_path[1024] = "";

// splitmix64: the same sequence with every standard library, unlike the std distributions.
class Random {
 public:
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  size_t Below(size_t bound) { return static_cast<size_t>(Next() % bound); }

 private:
  uint64_t state_ = 20260101;
};

extern "C" void SaveCurrentInput(int signal_number) {
  const int file = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file >= 0) {
    [[maybe_unused]] ssize_t ignored = write(file, current_data, current_size);
    constexpr char kSaved[] = "The input that failed is saved as ";
    ignored = write(STDERR_FILENO, kSaved, sizeof(kSaved) - 1);
    ignored = write(STDERR_FILENO, crash_path, strlen(crash_path));
    ignored = write(STDERR_FILENO, "\n", 1);
    close(file);
  }
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void RunOne(const Input& input) {
  // An exact heap copy, so that the address sanitizer sees a read one byte past the end.
  const Input exact(input.begin(), input.end());
  current_data = exact.data();
  current_size = exact.size();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

// A missing folder is an empty corpus: a target's first run comes before its first seed.
std::vector<Input> LoadCorpus(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_regular_file(path)) {
    files.push_back(path);
  } else if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> corpus;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return corpus;
}

Input RandomInput(Random* random) {
  Input input(random->Below(random->Below(kMaxInputBytes) + 1));
  for (uint8_t& byte : input) byte = static_cast<uint8_t>(random->Next());
  return input;
}

// The mutations that break parsers: a flipped bit, an extreme byte, a cut, a splice, a repetition.
void MutateOnce(const std::vector<Input>& corpus, Random* random, Input* input) {
  constexpr uint8_t kExtremes[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
  if (input->empty()) {
    *input = RandomInput(random);
    return;
  }
  const size_t at = random->Below(input->size());
  switch (random->Below(6)) {
    case 0:
      (*input)[at] ^= static_cast<uint8_t>(1U << random->Below(8));
      break;
    case 1: {
      // Several in a row, since a length or an offset field is rarely a single byte.
      const size_t count = std::min<size_t>(size_t{1} << random->Below(4), input->size() - at);
      std::fill_n(input->begin() + static_cast<ptrdiff_t>(at), count,
                  kExtremes[random->Below(std::size(kExtremes))]);
      break;
    }
    case 2:
      input->resize(at);
      break;
    case 3: {
      const Input& other = corpus[random->Below(corpus.size())];
      const size_t from = other.empty() ? 0 : random->Below(other.size());
      input->resize(at);
      input->insert(input->end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
      break;
    }
    case 4: {
      const size_t count = std::min<size_t>(random->Below(32) + 1, input->size() - at);
      const auto first = input->begin() + static_cast<ptrdiff_t>(at);
      const Input piece(first, first + static_cast<ptrdiff_t>(count));
      input->insert(input->begin() + static_cast<ptrdiff_t>(at), piece.begin(), piece.end());
      break;
    }
    default:
      (*input)[at] = static_cast<uint8_t>(random->Next());
      break;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: %s CORPUS-FOLDER-OR-FILE [RUNS]\n", argv[0]);
    return 2;
  }
  const std::filesystem::path program = argv[0];
  const auto crash_file = std::filesystem::absolute("crash-" + program.filename().string());
  std::snprintf(crash_path, sizeof(crash_path), "%s", crash_file.c_str());
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    // A sanitizer that is already listening reports first, and then aborts into our handler.
    struct sigaction present = {};
    sigaction(signal_number, nullptr, &present);
    if (present.sa_handler == SIG_DFL) std::signal(signal_number, SaveCurrentInput);
  }
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&argc, &argv);

  const std::vector<Input> corpus = LoadCorpus(argv[1]);
  for (const Input& input : corpus) RunOne(input);

  const size_t runs = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 0;
  Random random;
  if (runs > 0) RunOne({});
  for (size_t run = 0; run < runs; ++run) {
    // A quarter is pure noise; the rest starts from a seed and so gets past the first checks.
    Input input;
    if (corpus.empty() || random.Below(4) == 0) {
      input = RandomInput(&random);
    } else {
      input = corpus[random.Below(corpus.size())];
      const size_t mutations = random.Below(4) + 1;
      for (size_t i = 0; i < mutations; ++i) MutateOnce(corpus, &random, &input);
    }
    RunOne(input);
  }
  std::printf("%zu seeds and %zu derived inputs\n", corpus.size(), runs);
  return 0;
}
