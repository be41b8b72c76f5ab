#include "tensor/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "tensor/gguf_parse.h"
#include "tensor/gguf_parts.h"
#include "tensor/printable.h"

namespace quire {
namespace {

constexpr std::string_view kSplitCount = "split.count";

template <class Stored>
Stored load(const std::byte* at) {
  Stored value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A stored number as T. A value that T cannot hold wraps, so callers check the range.
template <class T>
T load_as(GgufType stored, const std::byte* at) {
  switch (stored) {
    case GgufType::u8:
      return static_cast<T>(load<std::uint8_t>(at));
    case GgufType::i8:
      return static_cast<T>(load<std::int8_t>(at));
    case GgufType::u16:
      return static_cast<T>(load<std::uint16_t>(at));
    case GgufType::i16:
      return static_cast<T>(load<std::int16_t>(at));
    case GgufType::u32:
      return static_cast<T>(load<std::uint32_t>(at));
    case GgufType::i32:
      return static_cast<T>(load<std::int32_t>(at));
    case GgufType::u64:
      return static_cast<T>(load<std::uint64_t>(at));
    case GgufType::i64:
      return static_cast<T>(load<std::int64_t>(at));
    case GgufType::boolean:
      return static_cast<T>(load<std::uint8_t>(at) != 0);
    case GgufType::f32:
      return static_cast<T>(load<float>(at));
    case GgufType::f64:
      return static_cast<T>(load<double>(at));
    case GgufType::string:
    case GgufType::array:
      break;
  }
  CHECK(false && "not a number");
  return T{};
}

bool is_integer(GgufType type) {
  return type != GgufType::string && type != GgufType::array && type != GgufType::boolean &&
         type != GgufType::f32 && type != GgufType::f64;
}
bool is_signed(GgufType type) {
  return type == GgufType::i8 || type == GgufType::i16 || type == GgufType::i32 ||
         type == GgufType::i64;
}
bool is_float(GgufType type) { return type == GgufType::f32 || type == GgufType::f64; }

}  // namespace

template <class T>
T GgufNumbers<T>::operator[](std::uint64_t i) const {
  DCHECK(i < count_);
  return load_as<T>(stored_, at_ + i * gguf_type_bytes(stored_));
}
template class GgufNumbers<std::int64_t>;
template class GgufNumbers<float>;

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  GgufFile file;
  file.name_ = name;
  TRY_STATUS(GgufParser(bytes, file).parse());
  return file;
}

Result<GgufFile> GgufFile::open_one(const std::string& path) {
  TRY(MappedFile mapped, MappedFile::open(path));
  TRY(GgufFile file, parse(mapped.bytes(), path));
  file.files_.push_back(std::move(mapped));
  return file;
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  TRY(GgufFile one, open_one(path));
  TRY(const std::uint64_t count, one.unsigned_or(kSplitCount, 1));
  if (count <= 1) return one;
  const std::optional<GgufPart> name = part_of(path);
  if (!name || name->count != count)
    return Error{Code::invalid,
                 fmt::format("{}: is one of {} parts, whose names must end in -00001-of-{:05}.gguf "
                             "and so on; give them the names that they came with",
                             path, count, count)};
  std::vector<GgufFile> parts;
  for (std::uint32_t i = 1; i <= name->count; ++i) {
    Result<GgufFile> part = open_one(name->path(i));
    if (!part.ok())
      return Error{part.error().code,
                   fmt::format("{} (part {} of {}, which belong into one folder)",
                               part.error().message, i, count)};
    parts.push_back(std::move(part.value()));
  }
  return join(std::move(parts));
}

Result<GgufFile> GgufFile::join(std::vector<GgufFile> parts) {
  CHECK(!parts.empty());
  std::uint64_t tensor_count = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    TRY(const std::uint64_t number, parts[i].unsigned_of("split.no"));
    TRY(const std::uint64_t count, parts[i].unsigned_of(kSplitCount));
    if (number != i || count != parts.size())
      return Error{Code::corrupt,
                   fmt::format("{}: says that it is part {} of {}, and its name says {} of {}",
                               parts[i].name_, number + 1, count, i + 1, parts.size())};
    tensor_count += parts[i].tensors_.size();
  }
  for (const GgufFile& part : parts) {
    TRY(const std::uint64_t wanted, part.unsigned_or("split.tensors.count", tensor_count));
    if (wanted != tensor_count)
      return Error{Code::corrupt,
                   fmt::format("{}: says that the parts have {} tensors; they have {}", part.name_,
                               wanted, tensor_count)};
  }
  GgufFile whole = std::move(parts.front());
  whole.parts_ = parts.size();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    for (TensorView& tensor : parts[i].tensors_) {
      if (std::ranges::binary_search(whole.tensors_, tensor.name, {}, &TensorView::name))
        return Error{Code::corrupt, fmt::format("{}: tensor {} is in a part before it, too",
                                                parts[i].name_, printable(tensor.name))};
    }
    const auto middle = static_cast<std::ptrdiff_t>(whole.tensors_.size());
    std::ranges::move(parts[i].tensors_, std::back_inserter(whole.tensors_));
    std::inplace_merge(whole.tensors_.begin(), whole.tensors_.begin() + middle,
                       whole.tensors_.end(),
                       [](const auto& a, const auto& b) { return a.name < b.name; });
    std::ranges::move(parts[i].files_, std::back_inserter(whole.files_));
  }
  return whole;
}

void GgufFile::drop_pages(const TensorView& tensor) const {
  for (const MappedFile& file : files_)
    if (file.holds(tensor.data)) file.drop_pages(tensor.data);
}

void GgufFile::detach() {
  entries_.clear();
  for (MappedFile& file : files_) file.detach();
}

const GgufFile::Entry* GgufFile::entry(std::string_view key) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), key,
                                   [](const Entry& e, std::string_view k) { return e.key < k; });
  return at != entries_.end() && at->key == key ? &*at : nullptr;
}

const TensorView* GgufFile::find(std::string_view tensor) const {
  const auto at =
      std::lower_bound(tensors_.begin(), tensors_.end(), tensor,
                       [](const TensorView& t, std::string_view n) { return t.name < n; });
  return at != tensors_.end() && at->name == tensor ? &*at : nullptr;
}

Result<const GgufFile::Entry*> GgufFile::wanted(std::string_view key) const {
  if (const Entry* found = entry(key)) return found;
  return Error{Code::not_found, fmt::format("{}: key '{}' is missing", name_, key)};
}

Error GgufFile::wrong_type(const Entry& e, std::string_view need) const {
  std::string is(gguf_type_name(e.type));
  if (e.type == GgufType::array) is += fmt::format(" of {}", gguf_type_name(e.element));
  return Error{Code::corrupt, fmt::format("{}: key {} is of type {}, {} is needed", name_,
                                          printable(e.key), is, need)};
}

Result<std::uint64_t> GgufFile::unsigned_of(std::string_view key) const {
  TRY(const Entry* e, wanted(key));
  if (!is_integer(e->type)) return wrong_type(*e, "an unsigned integer");
  if (is_signed(e->type)) {
    const auto value = load_as<std::int64_t>(e->type, e->value.data());
    if (value < 0)
      return Error{Code::corrupt,
                   fmt::format("{}: key '{}' is {}, which may not be negative", name_, key, value)};
  }
  return load_as<std::uint64_t>(e->type, e->value.data());
}

Result<float> GgufFile::f32_of(std::string_view key) const {
  TRY(const Entry* e, wanted(key));
  if (!is_float(e->type)) return wrong_type(*e, "a float");
  return load_as<float>(e->type, e->value.data());
}

Result<bool> GgufFile::bool_of(std::string_view key) const {
  TRY(const Entry* e, wanted(key));
  if (e->type != GgufType::boolean) return wrong_type(*e, "a boolean");
  return load_as<bool>(e->type, e->value.data());
}

Result<std::string_view> GgufFile::string_of(std::string_view key) const {
  TRY(const Entry* e, wanted(key));
  if (e->type != GgufType::string) return wrong_type(*e, "a string");
  return std::string_view(reinterpret_cast<const char*>(e->value.data()), e->value.size());
}

bool GgufFile::is_array(std::string_view key) const {
  const Entry* e = entry(key);
  return e && e->type == GgufType::array;
}

Result<GgufStrings> GgufFile::strings_of(std::string_view key) const {
  TRY(const Entry* e, wanted(key));
  if (e->type != GgufType::array || e->element != GgufType::string)
    return wrong_type(*e, "an array of strings");
  return GgufStrings(e->value, e->count);
}

Result<GgufNumbers<std::int64_t>> GgufFile::integers_of(std::string_view key) const {
  TRY(const Entry* e, wanted(key));
  if (e->type != GgufType::array || !(is_integer(e->element) || e->element == GgufType::boolean))
    return wrong_type(*e, "an array of integers");
  return GgufNumbers<std::int64_t>(e->value.data(), e->count, e->element);
}

Result<GgufNumbers<float>> GgufFile::floats_of(std::string_view key) const {
  TRY(const Entry* e, wanted(key));
  if (e->type != GgufType::array || !is_float(e->element))
    return wrong_type(*e, "an array of floats");
  return GgufNumbers<float>(e->value.data(), e->count, e->element);
}

Result<std::uint64_t> GgufFile::unsigned_or(std::string_view key, std::uint64_t otherwise) const {
  return has(key) ? unsigned_of(key) : otherwise;
}
Result<float> GgufFile::f32_or(std::string_view key, float otherwise) const {
  return has(key) ? f32_of(key) : otherwise;
}
Result<bool> GgufFile::bool_or(std::string_view key, bool otherwise) const {
  return has(key) ? bool_of(key) : otherwise;
}
Result<std::string_view> GgufFile::string_or(std::string_view key,
                                             std::string_view otherwise) const {
  return has(key) ? string_of(key) : otherwise;
}

}  // namespace quire
