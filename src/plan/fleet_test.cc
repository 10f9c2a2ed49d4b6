#include "plan/fleet.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aquifer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Refused(const std::string& text, const FleetChoices& choices = {}) {
  const Result<Fleet> fleet = ParseFleet(text, "fleet.toml", choices);
  EXPECT_FALSE(fleet.ok()) << text;
  EXPECT_EQ(fleet.status().code(), Code::kInvalid);
  return fleet.status().message();
}

Fleet Parsed(const std::string& text, const FleetChoices& choices = {}) {
  const Result<Fleet> fleet = ParseFleet(text, "fleet.toml", choices);
  EXPECT_TRUE(fleet.ok()) << fleet.status().message();
  return fleet.ok() ? *fleet : Fleet();
}

TEST(FleetTest, WithoutAFileItIsAnH200WithLlama) {
  const Fleet fleet = Parsed("");
  EXPECT_EQ(fleet.gpu.name, "h200");
  EXPECT_DOUBLE_EQ(fleet.model.kv_bytes_per_token, 128 << 10);
  EXPECT_DOUBLE_EQ(fleet.dram.bytes_per_second, 55.5e9);
}

// 1 024 to 131 072 tokens of Llama 3 8B took so long on an H200.
TEST(FleetTest, ThePresetsPredictThePrefillThatWasMeasured) {
  const Fleet fleet = Parsed("");
  for (const auto& [tokens, measured_ms] :
       {std::pair{1024, 31.0}, {8192, 262.0}, {32'768, 1410.0}, {131'072, 11'800.0}}) {
    EXPECT_NEAR(fleet.prefill.Milliseconds(tokens, 0), measured_ms, 0.08 * measured_ms) << tokens;
  }
}

TEST(FleetTest, AFileChangesPresetsAndTheCommandLineChangesTheFile) {
  const std::string file = R"(
[gpu]
dollars_per_hour = 9
preset = "l4"
[dram]
size = "64GiB"
[nvme]
size = 0
)";
  const Fleet fleet = Parsed(file);
  EXPECT_EQ(fleet.gpu.name, "l4");
  EXPECT_DOUBLE_EQ(fleet.gpu.dollars_per_hour, 9);
  EXPECT_DOUBLE_EQ(fleet.gpu.tflops, 121);
  EXPECT_EQ(fleet.dram.bytes, uint64_t{64} << 30);
  EXPECT_EQ(fleet.nvme.bytes, 0u);
  const Fleet other = Parsed(file, {.gpu = "h100", .nodes = "3", .dram = "1TiB", .nvme = "2TB"});
  EXPECT_EQ(other.gpu.name, "h100");
  EXPECT_DOUBLE_EQ(other.gpu.dollars_per_hour, 9);
  EXPECT_EQ(other.nodes, 3u);
  EXPECT_EQ(other.dram.bytes, uint64_t{1} << 40);
  EXPECT_EQ(other.nvme.bytes, 2'000'000'000'000u);
}

TEST(FleetTest, AModelOfOnesOwnNeedsItsShape) {
  const Fleet fleet = Parsed(R"(
[model]
parameters_billions = 8.03
layers = 32
heads = 32
kv_heads = 8
head_dim = 128
)");
  EXPECT_DOUBLE_EQ(fleet.model.kv_bytes_per_token, 128 << 10);
  EXPECT_NEAR(fleet.prefill.Milliseconds(1024, 0), 31, 2);
  EXPECT_THAT(Refused("[model]\nlayers = 32\n"),
              AllOf(HasSubstr("model.parameters_billions"), HasSubstr("missing")));
  EXPECT_THAT(
      Refused("[model]\nparameters_billions = 7\nlayers = 32\nheads = 32\nhead_dim = 128\n"),
      HasSubstr("num_key_value_heads"));
}

TEST(FleetTest, EveryKeyOfAModelChangesItsPreset) {
  const std::string preset = "[model]\npreset = \"llama-3-8b\"\n";
  const ModelShape plain = Parsed(preset).model;
  const auto changed = [&](const std::string& keys) { return Parsed(preset + keys).model; };
  EXPECT_DOUBLE_EQ(changed("kv_heads = 1\n").kv_bytes_per_token, plain.kv_bytes_per_token / 8);
  EXPECT_EQ(changed("kv_heads = 1\n").name, "llama-3-8b, changed");
  EXPECT_DOUBLE_EQ(changed("layers = 64\n").kv_bytes_per_token, plain.kv_bytes_per_token * 2);
  EXPECT_DOUBLE_EQ(changed("layers = 64\n").attention_flops_per_pair,
                   plain.attention_flops_per_pair * 2);
  EXPECT_DOUBLE_EQ(changed("heads = 64\n").attention_flops_per_pair,
                   plain.attention_flops_per_pair * 2);
  EXPECT_DOUBLE_EQ(changed("head_dim = 64\n").kv_bytes_per_token, plain.kv_bytes_per_token / 2);
  EXPECT_DOUBLE_EQ(changed("bytes_per_value = 1\n").kv_bytes_per_token,
                   plain.kv_bytes_per_token / 2);
  EXPECT_DOUBLE_EQ(
      changed("layers = 32\nheads = 32\nhead_dim = 128\nbytes_per_value = 1\n").kv_bytes_per_token,
      plain.kv_bytes_per_token / 2);
  EXPECT_DOUBLE_EQ(changed("kv_bytes_per_token = 5000\nlayers = 64\n").kv_bytes_per_token, 5000);
  EXPECT_THAT(Refused(preset + "kv_heads = 64\n"), HasSubstr("impossible"));
  EXPECT_THAT(
      Refused("[fleet]\ngpus_per_engine = 8\n[model]\npreset = \"deepseek-v3\"\nheads = 4\n"),
      HasSubstr("fleet.toml:5: model.heads: this model does not keep"));
}

TEST(FleetTest, APresetOfTheCommandLineIsChangedByTheFileToo) {
  const std::string file =
      "[fleet]\ngpus_per_engine = 2\n[model]\nkv_bytes_per_token = \"64KiB\"\n";
  const Fleet fleet = Parsed(file, {.model = "llama-3-70b"});
  EXPECT_EQ(fleet.model.name, "llama-3-70b, changed");
  EXPECT_DOUBLE_EQ(fleet.model.kv_bytes_per_token, 64 << 10);
  EXPECT_DOUBLE_EQ(fleet.model.parameters, 70.6e9);
}

TEST(FleetTest, AnEngineHasAsFewGpusAsHoldItsModel) {
  EXPECT_EQ(Parsed("").gpus_per_engine, 1u);
  EXPECT_EQ(Parsed("", {.model = "llama-3-70b"}).gpus_per_engine, 2u);
  EXPECT_EQ(Parsed("", {.gpu = "b200", .model = "llama-3-70b"}).gpus_per_engine, 1u);
  EXPECT_EQ(Parsed("", {.gpu = "l4", .model = "llama-3-70b"}).gpus_per_engine, 8u);
  EXPECT_EQ(Parsed("", {.model = "deepseek-v3"}).gpus_per_engine, 8u);
  // Four GPUs would hold it, but six are not shared out to engines of four.
  EXPECT_EQ(Parsed("[fleet]\ngpus_per_node = 6\n", {.gpu = "l40s", .model = "llama-3-70b"})
                .gpus_per_engine,
            6u);
  EXPECT_THAT(Refused("", {.gpu = "l4", .model = "deepseek-v3"}),
              AllOf(HasSubstr("does not fit into the 8 GPUs of 24 GB of a node"),
                    HasSubstr("gpus_per_node")));
}

TEST(FleetTest, ASizeOfATierWithoutItsUnitIsRefused) {
  EXPECT_THAT(Refused("", {.dram = "10"}),
              AllOf(StartsWith("--dram: 10 without a unit is 10 bytes"), HasSubstr("10GiB")));
  EXPECT_THAT(Refused("", {.nvme = "4000"}), HasSubstr("4000GiB"));
  EXPECT_THAT(Refused("[dram]\nsize = 512\n"),
              AllOf(StartsWith("fleet.toml:2: dram.size: "), HasSubstr("512GiB")));
  EXPECT_THAT(Refused("[nvme]\nsize = \"15\"\n"), HasSubstr("15GiB"));
  EXPECT_EQ(Parsed("", {.dram = "0", .nvme = "0"}).nvme.bytes, 0u);
  EXPECT_EQ(Parsed("", {.dram = "68719476736"}).dram.bytes, uint64_t{64} << 30);
  EXPECT_EQ(Parsed("[dram]\nsize = \"10MB\"\n").dram.bytes, 10'000'000u);
}

TEST(FleetTest, MeasuredPrefillCountsInPlaceOfTheGpus) {
  EXPECT_DOUBLE_EQ(Parsed("[prefill]\ntokens_per_second = 1000\n").prefill.ms_per_token, 1);
  const Fleet fleet =
      Parsed("[prefill]\nstep_ms = 5\nms_per_token = 0.1\nms_per_token_pair = 1e-6\n");
  EXPECT_DOUBLE_EQ(fleet.prefill.Milliseconds(10, 0), 6 + 50e-6);
}

TEST(FleetTest, MistakesAreRefusedWithFileLineReasonAndSuggestion) {
  EXPECT_THAT(Refused("[gpu]\npreset = \"h20\"\n"),
              AllOf(StartsWith("fleet.toml:2: gpu.preset: "), HasSubstr("did you mean 'h200'?")));
  EXPECT_THAT(Refused("[dram]\nsize = \"1TiB\"\nsped = \"1GB\"\n"),
              AllOf(StartsWith("fleet.toml:3: "), HasSubstr("speed")));
  EXPECT_THAT(Refused("[drm]\nsize = 1\n"), AllOf(StartsWith("fleet.toml:1: "), HasSubstr("dram")));
  EXPECT_THAT(Refused("[dram]\nsize = \"9000TiB\"\n"),
              AllOf(StartsWith("fleet.toml:2: dram.size: "), HasSubstr("impossible")));
  EXPECT_THAT(Refused("[nvme]\nspeed = \"10\"\n"),
              AllOf(StartsWith("fleet.toml:2: nvme.speed: "), HasSubstr("\"25GB\"")));
  EXPECT_THAT(Refused("[gpu]\nefficiency = 1.5\n"),
              AllOf(StartsWith("fleet.toml:2: gpu.efficiency: "), HasSubstr("from 0.01 to 1")));
  EXPECT_THAT(Refused("[gpu]\nwatts = nan\n"), StartsWith("fleet.toml:2: gpu.watts: "));
  EXPECT_THAT(Refused("[gpu]\nidle_watts = 800\n"), StartsWith("fleet.toml:2: gpu.idle_watts: "));
  EXPECT_THAT(Refused("[fleet]\ngpus_per_engine = 3\n"),
              AllOf(StartsWith("fleet.toml:2: "), HasSubstr("divisor")));
  EXPECT_THAT(Refused("[fleet]\ngpus_per_engine = 1\n[model]\npreset = \"llama-3-70b\"\n"),
              AllOf(HasSubstr("does not fit into 1 GPU of 141 GB"), HasSubstr("gpus_per_engine")));
  EXPECT_THAT(Refused("[gpu]\nengine_cache = \"1TiB\"\n"), StartsWith("fleet.toml:2: "));
  EXPECT_THAT(Refused("[prefill]\ntokens_per_second = 10\nstep_ms = 1\n"), HasSubstr("twice"));
  EXPECT_THAT(Refused("[durable]\nsize = 0\n"), HasSubstr("unlimited"));
  EXPECT_THAT(Refused("[fleet]\nrouting = \"sticki\"\n"), HasSubstr("sticky"));
  EXPECT_THAT(Refused("[fleet\n"), StartsWith("fleet.toml:1: "));
  EXPECT_THAT(Refused("", {.gpu = "h2000"}), AllOf(StartsWith("--gpu: "), HasSubstr("h200")));
  EXPECT_THAT(Refused("", {.nodes = "0"}), StartsWith("--nodes: "));
  EXPECT_THAT(Refused("", {.dram = "much"}), StartsWith("--dram: "));
}

// The file that people begin with has every key, once, with its default.
TEST(FleetTest, TheExampleDocumentsEveryKeyAndChangesNothing) {
  std::stringstream text;
  text << std::ifstream(AQUIFER_SOURCE_DIR "/etc/fleet.toml").rdbuf();
  const Fleet plain = Parsed("");
  EXPECT_EQ(Parsed(text.str()).dram.bytes, plain.dram.bytes);
  std::string section;
  std::string uncommented;
  std::vector<std::string> keys;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("[")) section = line.substr(1, line.find(']') - 1);
    const size_t equals = line.find(" = ");
    const bool key =
        line.starts_with("#") && !line.starts_with("# ") && equals != std::string::npos;
    if (key) keys.push_back(section + "." + line.substr(1, equals - 1));
    // Two keys say the same in two ways.
    const bool other_way = key && keys.back() == "prefill.tokens_per_second";
    uncommented += (key && !other_way ? line.substr(1) : line) + "\n";
  }
  EXPECT_THAT(keys, ::testing::UnorderedElementsAreArray(FleetKeys()));
  const Fleet all = Parsed(uncommented);
  EXPECT_EQ(all.dram.bytes, plain.dram.bytes);
  EXPECT_EQ(all.nvme.bytes, plain.nvme.bytes);
  EXPECT_EQ(all.nodes, plain.nodes);
  EXPECT_EQ(all.gpus_per_node, plain.gpus_per_node);
  const auto numbers = [](const Fleet& f) {
    return std::vector<double>{f.dollars_per_kwh,
                               f.months,
                               f.gpu.tflops,
                               f.gpu.efficiency,
                               f.gpu.memory_bytes,
                               f.gpu.host_link_bytes_per_second,
                               f.gpu.watts,
                               f.gpu.idle_watts,
                               f.gpu.dollars_per_hour,
                               f.engine_cache_bytes,
                               f.model.parameters,
                               f.model.weight_bytes,
                               f.model.kv_bytes_per_token,
                               f.model.attention_flops_per_pair,
                               f.dram.bytes_per_second,
                               f.dram.latency_ms,
                               f.dram.dollars_per_gib,
                               f.dram.watts_per_gib,
                               f.nvme.bytes_per_second,
                               f.nvme.write_bytes_per_second,
                               f.nvme.latency_ms,
                               f.nvme.dollars_per_tb,
                               f.nvme.watts_per_tb,
                               f.nvme.drive_writes_per_day,
                               f.peers.bytes_per_second,
                               f.peers.latency_ms,
                               f.peers.dollars_per_node,
                               f.peers.watts_per_node,
                               f.durable.bytes_per_second,
                               f.durable.latency_ms,
                               f.durable.dollars_per_gib_month,
                               f.durable.dollars_per_million_reads,
                               f.durable.dollars_per_million_writes};
  };
  EXPECT_EQ(numbers(all), numbers(plain));
  EXPECT_NEAR(all.prefill.ms_per_token, plain.prefill.ms_per_token, 1e-4);
  EXPECT_NEAR(all.prefill.ms_per_token_pair, plain.prefill.ms_per_token_pair, 1e-8);
}

}  // namespace
}  // namespace aquifer
