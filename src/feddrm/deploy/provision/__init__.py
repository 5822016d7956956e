"""Making a deployment's folders: projects, certificates, scripts."""
