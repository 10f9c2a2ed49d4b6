// The rows of vLLM are measured by the Python package, which can start engines
// (python/aquifer/vllm/bench.py): it is run for them, and prints them, in JSON like ours.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace aquifer {

// Whether a beginning of a row's name is one of those.
inline bool IsVllmName(std::string_view name) { return name.starts_with("vllm"); }

// `words` are names and options of `aquifer bench`. Returns the status to exit with.
int BenchVllm(std::vector<std::string> words);

}  // namespace aquifer
