// The documented settings files in etc/, as tests read them: prose has a space behind its '#', a
// setting that is shown with its default, and a table of settings that may be missing, has none.
#pragma once

#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace aquifer {

struct ExampleSetting {
  std::string name;   // "dram.size"
  std::string prose;  // In front of it.
};

inline std::string ReadExampleFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The name that a line sets, whether there is a '#' in front of it or not; empty: none.
inline std::string NameSetIn(std::string_view line) {
  if (line.starts_with('#')) line.remove_prefix(1);
  const size_t end = line.find(" = ");
  if (end == std::string_view::npos) return "";
  const std::string_view name = line.substr(0, end);
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  return name.find_first_not_of(kLetters) == std::string_view::npos ? std::string(name) : "";
}

// Every setting of the file, in order.
inline std::vector<ExampleSetting> SettingsIn(const std::string& text) {
  std::vector<ExampleSetting> settings;
  std::string section;
  std::string prose;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[') && !line.starts_with("[[")) {
      section = line.substr(1, line.find(']') - 1) + ".";
    } else if (line.starts_with("#[[")) {
      section = line.substr(3, line.find(']') - 3) + ".";
    } else if (line.empty()) {
      prose.clear();
    } else if (const std::string name = NameSetIn(line); !name.empty()) {
      settings.push_back({.name = section + name, .prose = prose});
    } else {
      prose += line + "\n";
    }
  }
  return settings;
}

// The file with its defaults written out, but for those that have no value which means the same.
inline std::string WithDefaultsWrittenOut(const std::string& text,
                                          const std::set<std::string>& without = {}) {
  std::string written;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = NameSetIn(line);
    const bool shown = line.starts_with("#[[") || (!name.empty() && line.starts_with('#'));
    if (shown && !without.contains(name)) line.erase(0, 1);
    written += line + "\n";
  }
  return written;
}

}  // namespace aquifer
