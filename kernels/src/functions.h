// Functions of numbers, written so that a compiler vectorises loops over them. Included in a namespace.
//
// In float, exp and log follow Cephes (S. L. Moshier), tanh is the rational function that ONNX Runtime has too, and erf
// follows N. Juffa's minimax polynomials; each is off by a few units in the last place. In double, they are the C
// library's.

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {  // unsigned: the bits of a NaN may overflow in what follows
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float exponential(float x) {
  const float lowest = -104.f, highest = 89.f;  // e^x is 0 below and infinite above
  x = x < lowest ? lowest : x;                  // NaN stays
  x = x > highest ? highest : x;
  const float shift = 12582912.f;  // 1.5·2^23: adding it rounds to a whole number
  float scaled = x * 1.44269504088896341f + shift;
  float n = scaled - shift;
  int32_t exponent = static_cast<int32_t>(float_to_bits(scaled) - float_to_bits(shift));
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  int32_t half = exponent >> 1;  // 2^exponent in two factors: it may be subnormal, or too large
  float first = bits_to_float(static_cast<uint32_t>(half + 127) << 23);
  float second = bits_to_float(static_cast<uint32_t>(exponent - half + 127) << 23);
  return p * first * second;
}

inline float logarithm(float x) {
  const float least = 1.17549435e-38f;
  bool subnormal = x < least;
  float y = subnormal ? x * 8388608.f : x;
  uint32_t bits = float_to_bits(y);
  int32_t exponent = static_cast<int32_t>(bits - 0x3f3504f3) >> 23;  // the mantissa is in [√½, √2)
  float m = bits_to_float(bits - (static_cast<uint32_t>(exponent) << 23)) - 1.f;
  float e = static_cast<float>(exponent) - (subnormal ? 23.f : 0.f);
  float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  p = p * m * z - e * 2.12194440e-4f - 0.5f * z;
  float result = m + p + e * 0.693359375f;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  result = x == infinity ? infinity : result;
  result = x == 0.f ? -infinity : result;
  return x < 0.f || x != x ? nan : result;
}

inline float hyperbolic_tangent(float x) {
  const float bound = 9.f;
  x = x < -bound ? -bound : x;
  x = x > bound ? bound : x;
  float s = x * x;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s - 8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return x * p / q;
}

inline float error_function(float x) {
  float t = std::fabs(x), s = x * x;
  float r = -1.72853470e-5f * t + 3.83197126e-4f;
  float u = -3.88396438e-3f * t + 2.42546219e-2f;
  r = r * s + u;
  r = r * t - 1.06777877e-1f;
  r = r * t - 6.34846687e-1f;
  r = r * t - 1.28717512e-1f;
  r = r * t - t;
  float far = 1.f - exponential(r > -88.f ? r : r != r ? r : -88.f);  // the polynomial of ∞ is −∞ or NaN
  far = t > 4.f ? 1.f : far;
  float near = -5.96761703e-4f;
  near = near * s + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  near = near * x + x;
  return t > 0.921875f ? std::copysign(far, x) : near;
}

inline double exponential(double x) { return std::exp(x); }
inline double logarithm(double x) { return std::log(x); }
inline double hyperbolic_tangent(double x) { return std::tanh(x); }
inline double error_function(double x) { return std::erf(x); }
