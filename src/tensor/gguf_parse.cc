#include "tensor/gguf_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tensor/printable.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little,
              "views of a file's numbers need a little-endian machine");

// Limits far above any real model. They keep the memory that a hostile file can make us allocate
// under 64 MiB.
constexpr std::uint64_t kEntriesMax = 65'536, kTensorsMax = 65'536;
constexpr std::uint64_t kKeyBytesMax = 65'535, kTensorNameBytesMax = 255;
constexpr std::uint64_t kAlignmentMax = 1 << 20;
constexpr std::uint32_t kDimensionsMax = 4;

struct TypeEntry {
  std::string_view name;
  std::size_t bytes;
};
constexpr TypeEntry kTypeEntries[] = {  // by GgufType
    {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8}};

// The bytes of a shape's rows * columns. Nothing if a row is not a multiple of the type's block, or
// if the size overflows.
bool tensor_bytes(const TensorView& tensor, std::uint64_t& bytes) {
  const DTypeInfo& info = dtype_info(tensor.type);
  if (tensor.columns() % info.block_elements != 0) return false;
  std::uint64_t n = info.block_bytes;
  if (__builtin_mul_overflow(n, tensor.columns() / info.block_elements, &n)) return false;
  for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i)
    if (__builtin_mul_overflow(n, tensor.shape[i], &n)) return false;
  bytes = n;
  return true;
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  return kTypeEntries[static_cast<std::size_t>(type)].name;
}
std::size_t gguf_type_bytes(GgufType type) {
  return kTypeEntries[static_cast<std::size_t>(type)].bytes;
}

Error GgufParser::bad(Code code, std::string_view message) const {
  return Error{code, fmt::format("{}: {}", file_.name_, message)};
}

Result<std::span<const std::byte>> GgufParser::take(std::uint64_t n, std::string_view what) {
  const std::uint64_t left = bytes_.size() - at_;
  if (n > left)
    return bad(
        Code::corrupt,
        fmt::format(
            "ends early: {} needs {} bytes at offset {}, {} are left; is the download complete?",
            what, n, at_, left));
  const auto taken = bytes_.subspan(at_, n);
  at_ += n;
  return taken;
}

template <class T>
Result<T> GgufParser::number(std::string_view what) {
  TRY(const auto raw, take(sizeof(T), what));
  T value;
  std::memcpy(&value, raw.data(), sizeof value);
  return value;
}

Result<std::string_view> GgufParser::text(std::uint64_t length_max, std::string_view what) {
  TRY(const std::uint64_t length, number<std::uint64_t>(what));
  if (length > length_max)
    return bad(Code::corrupt,
               fmt::format("{} claims {} bytes, at most {} are allowed", what, length, length_max));
  TRY(const auto raw, take(length, what));
  return std::string_view(reinterpret_cast<const char*>(raw.data()), raw.size());
}

Status GgufParser::parse() {
  TRY(const auto magic, take(4, "the magic number"));
  if (std::memcmp(magic.data(), "GGUF", 4) != 0)
    return bad(Code::corrupt, "is not a GGUF file: it does not begin with 'GGUF'");
  TRY(version_, number<std::uint32_t>("the version"));
  if (version_ > 0 && (version_ & 0xffff) == 0)
    return bad(Code::unsupported, "is big-endian; convert it to a little-endian GGUF");
  if (version_ != 2 && version_ != 3)
    return bad(Code::unsupported,
               fmt::format("has GGUF version {}; versions 2 and 3 are supported", version_));
  TRY(const std::uint64_t tensor_count, number<std::uint64_t>("the tensor count"));
  TRY(const std::uint64_t entry_count, number<std::uint64_t>("the key count"));
  if (tensor_count > kTensorsMax)
    return bad(Code::corrupt,
               fmt::format("claims {} tensors, at most {} are allowed", tensor_count, kTensorsMax));
  if (entry_count > kEntriesMax)
    return bad(Code::corrupt,
               fmt::format("claims {} keys, at most {} are allowed", entry_count, kEntriesMax));

  for (std::uint64_t i = 0; i < entry_count; ++i) TRY_STATUS(parse_entry());
  TRY_STATUS(sort_entries());
  std::vector<Place> places;
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    TRY(const Place place, parse_tensor());
    places.push_back(place);
  }
  return place_tensors(places);
}

Status GgufParser::parse_entry() {
  TRY(const std::string_view key,
      text(kKeyBytesMax, fmt::format("key number {}", file_.entries_.size() + 1)));
  if (key.empty())
    return bad(Code::corrupt, fmt::format("key number {} has no name", file_.entries_.size() + 1));
  const std::string what = "key " + printable(key);
  TRY(const auto type, number<std::uint32_t>(what));
  if (type >= std::size(kTypeEntries))
    return bad(Code::corrupt, fmt::format("{} has unknown type {}", what, type));
  GgufFile::Entry entry;
  entry.key = key;
  entry.type = static_cast<GgufType>(type);
  TRY_STATUS(parse_value(entry));
  if (entry.type == GgufType::boolean && std::to_integer<int>(entry.value[0]) > 1)
    return bad(Code::corrupt, fmt::format("{} is a boolean of value {}", what,
                                          std::to_integer<int>(entry.value[0])));
  file_.entries_.push_back(entry);
  return {};
}

Status GgufParser::parse_value(GgufFile::Entry& entry) {
  const std::string what = "key " + printable(entry.key);
  if (entry.type == GgufType::array) return parse_array(entry);
  std::uint64_t size = gguf_type_bytes(entry.type);
  if (entry.type == GgufType::string) {
    TRY(size, number<std::uint64_t>(what));
  }
  TRY(entry.value, take(size, what));
  return {};
}

Status GgufParser::parse_array(GgufFile::Entry& entry) {
  const std::string what = "array " + printable(entry.key);
  TRY(const auto element, number<std::uint32_t>(what));
  TRY(entry.count, number<std::uint64_t>(what));
  if (element >= std::size(kTypeEntries))
    return bad(Code::corrupt, fmt::format("{} has elements of unknown type {}", what, element));
  entry.element = static_cast<GgufType>(element);
  if (entry.element == GgufType::array)
    return bad(Code::unsupported,
               fmt::format("{} is nested; arrays of arrays are not supported", what));
  const std::uint64_t begin = at_;
  if (entry.element == GgufType::string) {
    for (std::uint64_t i = 0; i < entry.count; ++i) {
      TRY(const std::uint64_t length, number<std::uint64_t>(what));
      TRY_STATUS(take(length, what));
    }
  } else {
    std::uint64_t size;
    if (__builtin_mul_overflow(entry.count, gguf_type_bytes(entry.element), &size))
      return bad(Code::corrupt, fmt::format("{} claims {} elements", what, entry.count));
    TRY_STATUS(take(size, what));
  }
  entry.value = bytes_.subspan(begin, at_ - begin);
  return {};
}

Status GgufParser::sort_entries() {
  auto& entries = file_.entries_;
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  const auto twice = std::adjacent_find(
      entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.key == b.key; });
  if (twice != entries.end())
    return bad(Code::corrupt, fmt::format("key {} appears twice", printable(twice->key)));
  return {};
}

Result<GgufParser::Place> GgufParser::parse_tensor() {
  const std::string number_text = fmt::format("tensor number {}", file_.tensors_.size() + 1);
  TensorView tensor;
  TRY(const std::string_view name, text(kTensorNameBytesMax, number_text));
  if (name.empty()) return bad(Code::corrupt, number_text + " has no name");
  const std::string what = "tensor " + printable(name);
  tensor.name = name;
  TRY(const auto dimensions, number<std::uint32_t>(what));
  if (dimensions == 0 || dimensions > kDimensionsMax)
    return bad(Code::corrupt, fmt::format("{} claims {} dimensions, 1 to {} are allowed", what,
                                          dimensions, kDimensionsMax));
  tensor.shape.resize(dimensions);
  for (std::uint32_t i = dimensions; i-- > 0;) {  // the file counts from the innermost
    TRY(tensor.shape[i], number<std::uint64_t>(what));
    if (tensor.shape[i] == 0) return bad(Code::corrupt, what + " has a dimension of 0");
  }
  TRY(const auto type, number<std::uint32_t>(what));
  const Result<DType> known = dtype_from_gguf(type);
  if (!known.ok())
    return bad(known.error().code, fmt::format("{}: {}", what, known.error().message));
  tensor.type = known.value();
  Place place{.offset = 0, .size = 0, .tensor = file_.tensors_.size()};
  TRY(place.offset, number<std::uint64_t>(what));
  if (!tensor_bytes(tensor, place.size))
    return bad(Code::corrupt,
               fmt::format("{} of type {} has an impossible shape [{}]", what,
                           dtype_info(tensor.type).name, fmt::join(tensor.shape, ", ")));
  file_.tensors_.push_back(std::move(tensor));
  return place;
}

Result<std::uint64_t> GgufParser::alignment() const {
  constexpr std::string_view kKey = "general.alignment";
  TRY(const std::uint64_t alignment, file_.unsigned_or(kKey, 32));
  if (!std::has_single_bit(alignment) || alignment < 8 || alignment > kAlignmentMax)
    return bad(Code::corrupt, fmt::format("key '{}' is {}, a power of two from 8 to {} is needed",
                                          kKey, alignment, kAlignmentMax));
  return alignment;
}

Status GgufParser::place_tensors(std::vector<Place>& places) {
  TRY(const std::uint64_t align, alignment());
  const std::uint64_t start =
      std::min<std::uint64_t>((at_ + align - 1) / align * align, bytes_.size());
  const auto data = bytes_.subspan(start);
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.offset < b.offset; });
  std::uint64_t end = 0;
  std::string_view before;
  for (const Place& place : places) {
    TensorView& tensor = file_.tensors_[place.tensor];
    const std::string what = "tensor " + printable(tensor.name);
    if (place.offset % align != 0)
      return bad(Code::corrupt, fmt::format("{} begins at {}, no multiple of the alignment {}",
                                            what, place.offset, align));
    if (place.offset > data.size() || place.size > data.size() - place.offset)
      return bad(Code::corrupt, fmt::format("{} reaches past the end of the file: {} bytes at {} "
                                            "of {}; is the download complete?",
                                            what, place.size, place.offset, data.size()));
    if (place.offset < end)
      return bad(Code::corrupt, fmt::format("{} overlaps tensor {}", what, printable(before)));
    tensor.data = data.subspan(place.offset, place.size);
    end = place.offset + place.size;
    before = tensor.name;
  }
  auto& tensors = file_.tensors_;
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(tensors.begin(), tensors.end(),
                         [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != tensors.end())
    return bad(Code::corrupt, fmt::format("tensor {} appears twice", printable(twice->name)));
  return {};
}

}  // namespace quire
