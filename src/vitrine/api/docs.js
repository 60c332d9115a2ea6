// Starts Swagger UI. A file of its own, because the Content-Security-Policy of the page allows no inline script.
SwaggerUIBundle({
  dom_id: "#swagger-ui",
  url: "/openapi.json",
  deepLinking: true,
  displayRequestDuration: true,
  // The models are long; each operation shows its own.
  defaultModelsExpandDepth: 0,
  // A token stays in the memory of the page and is not written to the browser's storage.
  persistAuthorization: false,
  // The validator is a service of another host.
  validatorUrl: null,
});
