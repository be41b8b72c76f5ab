#include "model/tiny.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/half.h"
#include "base/random.h"
#include "model/arch/arch.h"
#include "model/encode_weights.h"
#include "tensor/gguf_writer.h"

namespace quire {
namespace {

void append_utf8(std::string& out, std::uint32_t c) {  // c < 0x800
  if (c < 0x80)
    out += static_cast<char>(c);
  else
    out += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
}

// Byte-level vocabularies spell bytes as printable characters: most stand for themselves, the
// others for 256 and up.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens(256);
  std::uint32_t next = 256;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
    append_utf8(tokens[b], printable ? b : next++);
  }
  return tokens;
}

// Numbers of an architecture's metadata beside those that all have.
struct TinyNumber {
  std::string_view architecture, key;
  float value;
};
constexpr TinyNumber kNumbers[] = {
    {"granite", "embedding_scale", 12},
    {"granite", "attention.scale", 0.4f},
    {"granite", "residual_scale", 0.22f},
    {"granite", "logit_scale", 8},
    {"gemma2", "attn_logit_softcapping", 5},  // so low that they bite
    {"gemma2", "final_logit_softcapping", 3},
    {"gpt2", "attention.layer_norm_epsilon", 1e-5f},
    {"starcoder2", "attention.layer_norm_epsilon", 1e-5f},
    {"falcon", "attention.layer_norm_epsilon", 1e-5f},
};

class TinyModel {
 public:
  explicit TinyModel(const TinyOptions& options) : o_(options), random_(options.seed) {}

  Result<std::string> make() {
    metadata();
    TRY(config_, config());
    tokenizer();
    std::vector<std::string> written;
    for (const std::string& name : tensor_names(config_)) {
      if (o_.rope_factors && name == "blk.0.attn_norm.weight")
        vector("rope_freqs.weight", {o_.head_dim / 2}, 4, 3);
      const NamedTensor tensor = *find_tensor(config_, name);
      std::vector<std::uint64_t> shape = tensor_shape(config_, tensor);
      std::string stored = stored_name(tensor, true);
      if (tensor.entry->name.find(".E.") != std::string_view::npos) {  // all experts are one
        stored = find_pieces(config_, tensor, true)[0].whole;
        shape.insert(shape.begin(), config_.per_layer[tensor.layer].ffn.experts.count);
      }
      if (std::ranges::count(written, stored) != 0) continue;  // two are one
      written.push_back(stored);
      if (stored.ends_with(".bias"))
        vector(stored, shape, 0, 0.3);
      else if (stored.ends_with("attn_sinks.weight"))
        vector(stored, shape, 0, 1);
      else if (shape.size() > 1)
        matrix(stored, shape);
      else
        vector(stored, shape, 1, 0.4);
    }
    if (o_.rope_long != 0)
      for (const char* name : {"rope_factors_short.weight", "rope_factors_long.weight"})
        vector(name, {config_.ropes[0].dimensions / 2}, 4, 3);
    return writer_.finish();
  }

 private:
  bool is(std::string_view architecture) const { return o_.architecture == architecture; }

  // What the metadata means: as a reader of the file will find it. Architectures look at a few
  // tensors, too.
  Result<ModelConfig> config() const {
    GgufWriter probe = writer_;
    const std::vector<std::byte> zeros(kTinyVocabulary * sizeof(float));
    const std::uint64_t table[] = {kTinyVocabulary, 1}, one[] = {1};
    probe.add_tensor("token_embd.weight", DType::f32, table, zeros);
    for (const char* name :
         {"blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.attn_q_norm.weight"})
      probe.add_tensor(name, DType::f32, one, std::span(zeros).first(sizeof(float)));
    const std::string bytes = probe.finish();
    TRY(const GgufFile file, GgufFile::parse(std::as_bytes(std::span(bytes)), "a tiny model"));
    TRY(ModelConfig config, config_from_gguf(file));
    config.tied_head = o_.tied_head;
    return config;
  }

  void metadata() {
    const auto key = [&](std::string_view name) {
      return fmt::format("{}.{}", o_.architecture, name);
    };
    writer_.add("general.architecture", o_.architecture);
    writer_.add("general.name", fmt::format("tiny {}", o_.architecture));
    writer_.add_u32(key("block_count"), o_.layers);
    writer_.add_u32(key("context_length"), o_.context);
    writer_.add_u32(key("embedding_length"), o_.hidden);
    writer_.add_u32(key("feed_forward_length"), o_.feed_forward);
    writer_.add_u32(key("attention.head_count"), o_.query_heads);
    writer_.add_u32(key("attention.head_count_kv"), is("gpt2") ? o_.query_heads : o_.kv_heads);
    writer_.add_u32(key("attention.key_length"), o_.head_dim);
    writer_.add_u32(key("attention.value_length"), o_.head_dim);
    writer_.add_f32(key("attention.layer_norm_rms_epsilon"), 1e-5f);
    writer_.add_f32(key("rope.freq_base"), is("gemma3") ? 1e6f : 1e4f);
    if (o_.rope_linear != 1) {
      writer_.add(key("rope.scaling.type"), "linear");
      writer_.add_f32(key("rope.scaling.factor"), o_.rope_linear);
    }
    if (o_.rope_yarn != 1) {
      writer_.add(key("rope.scaling.type"), "yarn");
      writer_.add_f32(key("rope.scaling.factor"), o_.rope_yarn);
      writer_.add_u32(key("rope.scaling.original_context_length"), 64);
    }
    if (o_.rope_long != 0) {
      writer_.add_u32(key("rope.scaling.original_context_length"), o_.rope_long);
      writer_.add_f32(key("rope.scaling.attn_factor"), 1.25f);
    }
    const std::uint32_t rotated =
        is("glm4") || is("glm4moe") ? o_.head_dim / 2 : o_.rope_dimensions;
    if (rotated != 0) writer_.add_u32(key("rope.dimension_count"), rotated);
    const bool has_experts = is("qwen2moe") || is("qwen3moe") || is("glm4moe") || is("gpt-oss");
    const std::uint32_t experts = has_experts && o_.experts == 0 ? 6 : o_.experts;
    if (experts != 0) {
      writer_.add_u32(key("expert_count"), experts);
      writer_.add_u32(key("expert_used_count"), 2);
      writer_.add_u32(key("expert_feed_forward_length"), o_.feed_forward * 2 / 3);
    }
    if (is("qwen2moe")) writer_.add_u32(key("expert_shared_feed_forward_length"), o_.feed_forward);
    if (is("glm4moe")) {
      writer_.add_u32(key("leading_dense_block_count"), 1);
      writer_.add_f32(key("expert_weights_scale"), 1.5f);
      writer_.add_bool(key("expert_weights_norm"), true);
    }
    const bool windows = is("gemma3") || is("gemma2") || is("gpt-oss");
    const std::uint32_t window = windows && o_.window == 0 ? 32 : o_.window;
    if (window) writer_.add_u32(key("attention.sliding_window"), window);
    for (const TinyNumber& number : kNumbers)
      if (is(number.architecture)) writer_.add_f32(key(number.key), number.value);
  }

  void tokenizer() {
    std::vector<std::string> tokens = byte_tokens();
    std::vector<std::int32_t> types(tokens.size(), 1);
    for (const std::string_view special : kTinySpecials) {
      tokens.emplace_back(special);
      types.push_back(3);
    }
    writer_.add("tokenizer.ggml.model", "gpt2");
    writer_.add("tokenizer.ggml.pre", "gpt-2");
    writer_.add_strings("tokenizer.ggml.tokens", tokens);
    writer_.add_i32s("tokenizer.ggml.token_type", types);
    writer_.add_strings("tokenizer.ggml.merges", {});
    writer_.add_u32("tokenizer.ggml.bos_token_id", 256);
    writer_.add_u32("tokenizer.ggml.eos_token_id", 257);
    writer_.add_bool("tokenizer.ggml.add_bos_token", false);
    writer_.add("tokenizer.chat_template",
                "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] "
                "}}<|eos|>{% endfor %}"
                "{% if add_generation_prompt %}<|assistant|>{% endif %}");
  }

  // Uniform numbers around `mean`: no library function whose last bit depends on the machine.
  std::vector<float> numbers(std::size_t count, double mean, double spread) {
    std::vector<float> values(count);
    for (float& v : values) v = static_cast<float>(mean + spread * (2 * random_.unit() - 1));
    return values;
  }

  static std::uint64_t size_of(std::span<const std::uint64_t> shape) {
    std::uint64_t size = 1;
    for (const std::uint64_t extent : shape) size *= extent;
    return size;
  }

  void matrix(const std::string& name, std::span<const std::uint64_t> shape) {
    const double spread = 2.5 / std::sqrt(static_cast<double>(shape.back()));
    std::vector<float> values = numbers(size_of(shape), 0, spread);
    // What chooses experts is never quantized.
    const DType type = name.find("ffn_gate_inp") == name.npos ? o_.type : DType::f32;
    if (o_.broken && name == "token_embd.weight")
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(7 * shape[1]), shape[1],
                  std::numeric_limits<float>::quiet_NaN());
    writer_.add_tensor(name, type, shape, encode_weights(type, values));
  }
  void vector(const std::string& name, const std::vector<std::uint64_t>& shape, double mean,
              double spread) {
    writer_.add_tensor(name, DType::f32, shape,
                       encode_weights(DType::f32, numbers(size_of(shape), mean, spread)));
  }

  const TinyOptions& o_;
  ModelConfig config_;
  Random random_;
  GgufWriter writer_;
};

}  // namespace

Result<std::string> tiny_gguf(const TinyOptions& o) {
  constexpr std::array kTypes = {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_1};
  if (std::find(kTypes.begin(), kTypes.end(), o.type) == kTypes.end())
    return Error{Code::invalid,
                 fmt::format("tiny models are not made in type {}", dtype_info(o.type).name)};
  for (const std::uint32_t columns : {o.hidden, o.feed_forward, o.query_heads * o.head_dim})
    if (columns == 0 || columns % dtype_info(o.type).block_elements != 0)
      return Error{Code::invalid, fmt::format("a tiny model in type {} has no rows of {}",
                                              dtype_info(o.type).name, columns)};
  return TinyModel(o).make();
}

Status write_tiny_gguf(const std::string& path, const TinyOptions& options) {
  TRY(const std::string bytes, tiny_gguf(options));
  return write_file(path, bytes);
}

}  // namespace quire
